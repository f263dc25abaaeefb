"""Token stores on disk: building, reading, verifying, describing and converting them, without torch."""
