"""What clients speak: one thin codec for each dialect, its routes and its errors."""
