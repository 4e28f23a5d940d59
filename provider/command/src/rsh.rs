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
