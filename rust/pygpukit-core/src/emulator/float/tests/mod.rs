//! Tests of the number work.
