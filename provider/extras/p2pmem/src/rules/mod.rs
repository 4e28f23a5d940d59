//! What a user allows, prefers and demands. docs/p2pmem.md has the grammar.

mod parse;
mod pattern;
mod rule;

pub use parse::size;
pub use pattern::{Pattern, Target};
pub use rule::{Case, Rule, Rules, Says, Scope};
