"""Readers of the ledger: status, lineage, transcripts, alarms."""
