"""Views of the ledger: status, lineage, transcripts, alarms."""
