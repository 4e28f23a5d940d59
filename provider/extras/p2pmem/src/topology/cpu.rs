//! The processor, as far as it matters here.

/// Vendor and family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// `AuthenticAMD`, `GenuineIntel`; empty where /proc/cpuinfo names none.
    pub vendor: String,
    pub family: u32,
}

impl Cpu {
    /// From the text of /proc/cpuinfo: the first processor.
    pub fn parse(cpuinfo: &str) -> Cpu {
        let first = cpuinfo.split("\n\n").next().unwrap_or("");
        let value = |name: &str| {
            first.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        let family = value("cpu family").and_then(|f| f.parse().ok()).unwrap_or(0);
        Cpu { vendor: value("vendor_id").unwrap_or_default(), family }
    }

    /// AMD's processors do from Zen on.
    pub fn passes_on(&self) -> bool {
        self.vendor == "AuthenticAMD" && self.family >= 0x17
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_read_from_cpuinfo() {
        let text =
            "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\n\nprocessor\t: 1\nvendor_id\t: X\n";
        let cpu = Cpu::parse(text);
        assert_eq!((cpu.vendor.as_str(), cpu.family, cpu.passes_on()), ("AuthenticAMD", 25, true));
        assert!(!Cpu { family: 0x15, ..cpu }.passes_on());
        assert!(!Cpu::parse("vendor_id : GenuineIntel\ncpu family : 143\n").passes_on());
        assert!(!Cpu::parse("").passes_on());
    }
}
