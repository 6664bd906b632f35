"""Module paths of other published packages over this runtime, so that programs written for them run here."""
