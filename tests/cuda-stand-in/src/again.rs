use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// This test program once more, with the ignored test of that name alone.
pub fn itself(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--ignored"]);
    command
}

/// How it ended; `None` if it had not after so many seconds.
pub fn outcome(mut command: Command, seconds: u64) -> Option<ExitStatus> {
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}
