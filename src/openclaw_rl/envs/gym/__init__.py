"""Third-party environments with Gymnasium's interface, used unchanged."""
