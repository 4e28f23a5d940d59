//! The version of the command.

/// The version, with the commit where it was built from a repository.
pub fn version() -> String {
    match option_env!("STRAIT_COMMIT") {
        Some(commit) => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
        None => env!("CARGO_PKG_VERSION").to_owned(),
    }
}
