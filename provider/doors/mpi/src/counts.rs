//! How often calls had device memory, which way they took, and how much was copied.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Which way a call took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// With the device's memory as it is: the MPI's transport accesses it.
    Direct,
    /// With host memory of this library's, to and from which the data are copied.
    Mirror,
    /// With memory of the device that kernels pack to and unpack from, as it is.
    Packed,
    /// By NCCL.
    Nccl,
    /// By a kernel of the device.
    Kernel,
    /// By all ranks' devices: messages of device memory between them, and kernels.
    Devices,
    /// By both ranks' devices: one kernel of each.
    Paired,
    /// It was refused.
    Refused,
}

/// What came of one call.
#[derive(Debug)]
pub struct Counts {
    direct: AtomicU64,
    mirrored: AtomicU64,
    packed_there: AtomicU64,
    nccl: AtomicU64,
    kernel: AtomicU64,
    devices: AtomicU64,
    paired: AtomicU64,
    refused: AtomicU64,
    /// Bytes from devices, and to devices, and those of both that kernels have packed or unpacked.
    from: AtomicU64,
    to: AtomicU64,
    packed: AtomicU64,
}

impl Counts {
    /// Nothing yet.
    pub const fn new() -> Counts {
        Counts {
            direct: AtomicU64::new(0),
            mirrored: AtomicU64::new(0),
            packed_there: AtomicU64::new(0),
            nccl: AtomicU64::new(0),
            kernel: AtomicU64::new(0),
            devices: AtomicU64::new(0),
            paired: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            from: AtomicU64::new(0),
            to: AtomicU64::new(0),
            packed: AtomicU64::new(0),
        }
    }

    /// One more call.
    pub fn add(&self, path: Path) {
        let count = match path {
            Path::Direct => &self.direct,
            Path::Mirror => &self.mirrored,
            Path::Packed => &self.packed_there,
            Path::Nccl => &self.nccl,
            Path::Kernel => &self.kernel,
            Path::Devices => &self.devices,
            Path::Paired => &self.paired,
            Path::Refused => &self.refused,
        };
        count.fetch_add(1, Relaxed);
    }

    /// Bytes were copied from a device.
    pub fn add_from_device(&self, bytes: usize) {
        self.from.fetch_add(bytes as u64, Relaxed);
    }

    /// Bytes were copied to a device.
    pub fn add_to_device(&self, bytes: usize) {
        self.to.fetch_add(bytes as u64, Relaxed);
    }

    /// Bytes of these were packed or unpacked by a kernel.
    pub fn add_by_kernels(&self, bytes: usize) {
        self.packed.fetch_add(bytes as u64, Relaxed);
    }

    /// A line for each way that was taken.
    pub fn line(&self, name: &str, to: &mut String) {
        let [direct, mirrored, nccl, refused] =
            [&self.direct, &self.mirrored, &self.nccl, &self.refused].map(|n| n.load(Relaxed));
        let [kernel, devices, paired, packed_there] =
            [&self.kernel, &self.devices, &self.paired, &self.packed_there].map(|n| n.load(Relaxed));
        let [from, back, packed] = [&self.from, &self.to, &self.packed].map(|n| n.load(Relaxed));
        let mut way = |n: u64, text: std::fmt::Arguments<'_>| {
            if n != 0 {
                let _ = writeln!(to, "  {name:<32} {n:>10} times  {text}");
            }
        };
        way(direct, format_args!("device memory, accessed by the MPI's transport"));
        way(
            packed_there,
            format_args!("packed or unpacked by kernels in device memory, accessed by the MPI's transport"),
        );
        way(
            mirrored,
            format_args!(
                "through host memory: {from} bytes from devices, {back} bytes to devices, {packed} of them packed or \
                 unpacked by kernels"
            ),
        );
        way(kernel, format_args!("by a kernel of the device"));
        way(devices, format_args!("by the ranks' devices: messages of device memory, and kernels"));
        way(paired, format_args!("by the ranks' devices: one kernel of each"));
        way(nccl, format_args!("nccl"));
        way(refused, format_args!("refused with an MPI error"));
    }
}

impl Default for Counts {
    fn default() -> Self {
        Counts::new()
    }
}

/// The windows on device memory.
pub static WINDOWS: Counts = Counts::new();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_there_for_each_way_that_was_taken() {
        let counts = Counts::new();
        let mut text = String::new();
        counts.line("MPI_Send", &mut text);
        assert_eq!(text, "");
        counts.add(Path::Mirror);
        counts.add(Path::Mirror);
        counts.add_from_device(7);
        counts.add(Path::Refused);
        counts.line("MPI_Send", &mut text);
        assert_eq!(text.lines().count(), 2);
        assert!(
            text.contains(
                "2 times  through host memory: 7 bytes from devices, 0 bytes to devices, 0 of them"
            )
        );
    }
}
