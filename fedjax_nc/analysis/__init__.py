"""Why a method works: curvature and geometry of trained models."""
