//! The process that copies devices' memory for one that is not to call CUDA: its standard input is a socket
//! to that one.

use std::io;

/// Copies until its user closes the socket.
pub fn run() -> io::Result<()> {
    // There is one thread.
    hmem::agent_process::serve_standard_input()
}
