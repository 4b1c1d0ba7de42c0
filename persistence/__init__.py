"""The truth on disk: records, event log, snapshots, recovery, verification."""
