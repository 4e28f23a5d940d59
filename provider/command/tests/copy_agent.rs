//! `strait copy-agent`, over the stand-in for CUDA's driver.

use std::process::{Command, Stdio};

use cuda_stand_in::driver::Driver;
use hmem::{Kind, Span, agent, registry};

const LEN: usize = 300_001;

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.arg("copy-agent");
    command
}

#[test]
fn the_command_copies_for_the_provider_and_for_no_person() {
    for stdin in [Stdio::null(), Stdio::piped()] {
        let out = command().stdin(stdin).output().unwrap();
        assert_eq!(out.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&out.stderr).contains("for the provider's own use"), "{out:?}");
    }
    let dir = std::env::temp_dir().join(format!("strait-copy-agent-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::os::unix::fs::symlink(stand_in::program::path("cuda_stand_in"), dir.join("libcuda.so.1")).unwrap();

    let cu = Driver::start();
    registry::find_runtimes();
    let at = cu.alloc(LEN);
    assert_eq!(agent::start(command()).unwrap_err().errno(), libc::ENOENT, "there is no driver to be found");
    agent::start({
        let mut command = command();
        command.env("LD_LIBRARY_PATH", &dir);
        command
    })
    .unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    // SAFETY: device memory.
    let device = unsafe { Span::new(at, LEN, Kind::Cuda) };
    let _kept = registry::get_pages(device, true).unwrap();
    let bytes: Vec<u8> = (0..LEN).map(|n| (n * 7 + n / 251) as u8).collect();
    assert_eq!(hmem::write(&[device], 0, &bytes), LEN);
    assert_eq!(cu.read(at, LEN), bytes);
    // It is no child of this process's: what waits for all its children does not wait for it.
    // SAFETY: touches no memory but the place for the status.
    assert_eq!(unsafe { libc::waitpid(-1, &mut 0, libc::WNOHANG) }, -1);
}
