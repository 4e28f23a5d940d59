//! What was done: `STRAIT_MPI_REPORT=1` prints it at MPI_Finalize.

use crate::counts::WINDOWS;
use crate::stderr::say;
use crate::{settings, table};

/// What this process has done, for people; empty where no call had device memory.
pub fn text() -> String {
    let mut text = String::new();
    for row in table::rows() {
        row.counts.line(row.name, &mut text);
    }
    WINDOWS.line("windows on device memory", &mut text);
    text
}

/// Prints it, where STRAIT_MPI_REPORT is set.
pub fn print(rank: i32) {
    if !settings::reports() {
        return;
    }
    let text = text();
    if text.is_empty() {
        say(&format!("rank {rank}: no call had device memory\n"));
    } else {
        say(&format!("rank {rank}: calls with device memory\n{text}"));
    }
}
