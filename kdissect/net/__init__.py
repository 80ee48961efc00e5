"""Link and IP headers: blocks of packets become TCP segment rows."""
