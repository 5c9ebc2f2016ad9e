"""Operations of the geometry next to other libraries, and their truth to 60 digits."""
