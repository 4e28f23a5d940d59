//! What is wrong, and what to do about it.

use std::fmt;

use serde::Serialize;

/// What is so, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    pub text: String,
    pub todo: String,
}

impl Cause {
    pub fn new(text: impl Into<String>, todo: impl Into<String>) -> Cause {
        Cause { text: text.into(), todo: todo.into() }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.text, self.todo)
    }
}
