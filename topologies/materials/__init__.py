"""Bills of materials: what a fabric is bought from, and what that costs by a user's own prices."""
