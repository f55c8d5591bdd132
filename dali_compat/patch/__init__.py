"""torch's DataLoader made ours where it is over images: install(), and what that takes."""
