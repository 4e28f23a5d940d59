//! Memory near some devices: `nearest SYSFS BYTES DEVICE...` (SYSFS is /sys on a real machine).

use std::error::Error;
use std::path::Path;

use p2pmem::{Orchestrator, Request, Rules};

/// Allocates it, writes to it, and says where it is from.
pub fn run(sysfs: &Path, len: u64, devices: &[String]) -> Result<String, Box<dyn Error>> {
    // At most 1 MiB for each user, and host memory if nothing else is to be had.
    let rules = Rules::parse("quota 1MiB\n")?;
    let all = Orchestrator::of_host(sysfs, rules, 1 << 30)?;
    let clients = devices.iter().map(|name| all.client(name)).collect::<Result<_, _>>()?;
    let buffer = all.allocate(&Request { clients, len, segments: 4, ..Request::default() })?;
    for piece in buffer.map()? {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(piece.addr());
        // SAFETY: the piece is mapped as long as the buffer is there.
        unsafe { at.write_bytes(1, piece.len()) };
    }
    let mut text = format!("{} bytes of {}", buffer.len(), buffer.publisher());
    for (client, route) in buffer.routes() {
        text += &format!("; {client}: distance {}, {route}", route.distance);
    }
    Ok(text)
}

#[allow(dead_code, reason = "the test that includes this calls `run`")]
fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [sysfs, len, devices @ ..] = &args[..] else {
        return Err("usage: nearest SYSFS BYTES DEVICE...".into());
    };
    println!("{}", run(Path::new(sysfs), len.parse()?, devices)?);
    Ok(())
}
