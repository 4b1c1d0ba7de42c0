"""What a board is (pure), and the Ray actors that host boards."""
