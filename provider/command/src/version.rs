//! The version of the command.

/// The version, with the commit where it was built from a repository.
pub const VERSION: &str = env!("STRAIT_VERSION");
