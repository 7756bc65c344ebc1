"""Why a method works: arrays in, numbers out."""
