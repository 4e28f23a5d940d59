//! Commands on other hosts, by ssh(1) or what is given in its place.

use std::process::Command;

/// A command that runs another one on a host: `words` of ssh(1) or its like, in front of the host's name, and
/// a line for a shell there. `None`: there are no words.
pub fn on(words: &[String], host: &str, line: &str) -> Option<Command> {
    let (program, options) = words.split_first()?;
    let mut command = Command::new(program);
    command.args(options).arg(host).arg(line);
    Some(command)
}

/// The words of such a command.
pub fn words(rsh: &str) -> Vec<String> {
    rsh.split_whitespace().map(str::to_owned).collect()
}

/// The name of a host as it stands in such a command, where a leading `-` would be an option.
pub fn host(text: &str) -> Result<String, String> {
    match text.is_empty()
        || text.starts_with('-')
        || text.contains(|c: char| c.is_whitespace() || c.is_control())
    {
        true => Err(format!("{text:?} is no name of a host")),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_option_is_no_host() {
        for text in ["", "-", "-oProxyCommand=x", "a b", "a\n", "a\x1b[2J"] {
            assert!(super::host(text).unwrap_err().contains("no name of a host"), "{text:?}");
        }
        for text in ["node1", "me@node1", "10.9.0.2", "node-1"] {
            assert_eq!(super::host(text).as_deref(), Ok(text));
        }
    }
}
