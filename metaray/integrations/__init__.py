"""What joins message brokers to metaray. One package for each broker."""
