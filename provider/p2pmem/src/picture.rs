//! The topology for people: a table, and a picture.
