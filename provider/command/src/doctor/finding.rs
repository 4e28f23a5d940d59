//! The result of one check.

use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Strait works; something is slower, or not used.
    Note,
    /// Strait does not work, or not as configured.
    Problem,
}

impl Level {
    pub fn mark(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "--",
            Level::Problem => "!!",
        }
    }
}

/// Something that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub area: &'static str,
    pub level: Level,
    /// What is so.
    pub text: String,
    /// What follows from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub means: Option<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cure: Option<String>,
}

impl Finding {
    pub fn new(area: &'static str, level: Level, text: impl Into<String>) -> Finding {
        Finding { area, level, text: text.into(), means: None, cure: None }
    }

    pub fn ok(area: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(area, Level::Ok, text)
    }

    pub fn means(mut self, text: impl Into<String>) -> Finding {
        self.means = Some(text.into());
        self
    }

    pub fn cure(mut self, text: impl Into<String>) -> Finding {
        self.cure = Some(text.into());
        self
    }
}
