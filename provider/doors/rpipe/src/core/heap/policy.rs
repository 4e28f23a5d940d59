//! Which free block an allocation comes from.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// How a free block is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The first that fits, from where the last allocation ended.
    #[default]
    NextFit,
    /// The first that fits, from the beginning of the heap.
    FirstFit,
    /// The shortest that fits.
    BestFit,
    /// The longest.
    WorstFit,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 4] = [Policy::NextFit, Policy::FirstFit, Policy::BestFit, Policy::WorstFit];
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::NextFit => "next-fit",
            Policy::FirstFit => "first-fit",
            Policy::BestFit => "best-fit",
            Policy::WorstFit => "worst-fit",
        })
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Policy, Error> {
        let names = Policy::ALL.map(|policy| policy.to_string());
        match names.iter().position(|name| name == text || name.trim_end_matches("-fit") == text) {
            Some(at) => Ok(Policy::ALL[at]),
            None => Err(Error::Invalid(format!("{text:?} is no policy; there are {}", names.join(", ")))),
        }
    }
}
