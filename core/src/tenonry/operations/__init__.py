"""Operations: what operators do to engines that run: sleep, new weights, profiles, saving."""
