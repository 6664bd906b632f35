"""Elements by index arrays and masks: gathers, scatters, sums at places, and what is made of them."""
