"""Operations that only faulty equations use."""
