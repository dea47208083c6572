"""What the finished models reach: accuracy, depths, prices, best of 16, anchors."""
