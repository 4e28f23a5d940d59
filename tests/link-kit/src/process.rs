//! Another process, which is a test of this program.

use std::fmt::Display;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

/// It does not outlive this.
#[derive(Debug)]
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Runs this test, which is ignored otherwise, with a variable of its environment, until it has read a
    /// name and said its own.
    pub fn start(test: &str, (key, value): (&str, &str), name: impl Display) -> (Process, wire::Addr) {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "--nocapture", test])
            .env(key, value)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let mut process = Process(child);
        writeln!(process.0.stdin.as_mut().expect("a pipe"), "{name}").expect("a process that reads");
        let said = BufReader::new(process.0.stdout.take().expect("a pipe"));
        let name =
            said.lines().map_while(Result::ok).find_map(|l| l.strip_prefix("name ").map(str::to_owned));
        (process, name_of(&name.expect("its name")))
    }
}

/// Says this name to the process that has started this one, and reads that one's.
pub fn meet(name: impl Display) -> wire::Addr {
    println!("\nname {name}");
    let mut theirs = String::new();
    std::io::stdin().read_line(&mut theirs).expect("a name");
    name_of(&theirs)
}

fn name_of(text: &str) -> wire::Addr {
    wire::Addr::new(text.trim().parse().expect("a name"))
}
