//! Other processes.

/// Another process: its pid, and a number that no other process with that pid has or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Its number here.
    pub pid: i32,
    /// The pid and the time at which it began.
    pub id: u64,
}

impl Owner {
    /// The process that has this pid now.
    pub fn now(pid: i32) -> Owner {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name, in parentheses, may hold anything; the start is the 20th word behind it.
        let start = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok());
        Owner { pid, id: (pid as u64) << 40 ^ start.unwrap_or(0u64) }
    }
}
