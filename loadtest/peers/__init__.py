"""What a studio would run instead: Redis, and a small HTTP service in front of it."""
