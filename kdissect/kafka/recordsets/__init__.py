"""Record batches and records: headers, compression, checksums, producers' sequences."""
