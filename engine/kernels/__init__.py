"""The small operations between the matrix products: a torch reference, and one C++ file that fuses them on CPUs."""
