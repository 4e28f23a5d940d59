//! What the environment says.

use std::sync::OnceLock;

/// How one device is.
#[derive(Clone, Debug)]
pub struct Profile {
    pub name: String,
    /// From 1, as in its addresses.
    pub number: u8,
    pub limits: Limits,
    pub gids: usize,
    pub ports: u8,
    /// `enum ibv_mtu`.
    pub mtu: u32,
    pub flags: Vec<String>,
    /// Where sysfs has it.
    pub sysfs: String,
}

#[derive(Clone, Debug)]
pub struct Limits {
    pub qp: u32,
    pub wr: u32,
    pub sge: u32,
    pub inline: u32,
    pub cq: u32,
    pub cqe: u32,
    pub mr: u32,
    pub mrsize: u64,
    pub mw: u32,
    pub srq: u32,
    pub srqwr: u32,
    pub srqsge: u32,
    pub reads: u32,
    pub msg: u32,
}

impl Profile {
    pub fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|f| f == flag)
    }

    pub fn has_port(&self, number: u8) -> bool {
        (1..=self.ports).contains(&number)
    }

    fn parse(text: &str, number: u8) -> Profile {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let limits = Limits {
            qp: 65_536,
            wr: 16_384,
            sge: 16,
            inline: 512,
            cq: 65_536,
            cqe: 65_536,
            mr: 524_288,
            mrsize: u64::MAX,
            mw: 524_288,
            srq: 4_096,
            srqwr: 32_768,
            srqsge: 16,
            reads: 16,
            msg: 1 << 30,
        };
        let sysfs = format!("/sys/class/infiniband/{name}");
        let (name, flags) = (name.into(), Vec::new());
        let mut profile = Profile { name, number, limits, gids: 16, ports: 1, mtu: 3, flags, sysfs };
        let options: Vec<&str> = options.split(',').filter(|o| !o.is_empty()).collect();
        if options.contains(&"rxe") {
            profile.limits.cqe = 16_384;
        }
        if options.contains(&"ib") || options.contains(&"iwarp") {
            profile.gids = 1;
        }
        for option in options {
            match option.split_once('=') {
                Some(("sysfs", path)) => profile.sysfs = path.into(),
                Some((key, value)) => profile.set(key, value),
                None => profile.flags.push(option.into()),
            }
        }
        profile
    }

    fn set(&mut self, key: &str, value: &str) {
        let number: u64 = value.parse().unwrap_or_else(|_| panic!("VERBS_STAND_IN_DEVICES: {key}={value}"));
        let limits = &mut self.limits;
        let place = match key {
            "qp" => &mut limits.qp,
            "wr" => &mut limits.wr,
            "sge" => &mut limits.sge,
            "inline" => &mut limits.inline,
            "cq" => &mut limits.cq,
            "cqe" => &mut limits.cqe,
            "mr" => &mut limits.mr,
            "mw" => &mut limits.mw,
            "srq" => &mut limits.srq,
            "srqwr" => &mut limits.srqwr,
            "srqsge" => &mut limits.srqsge,
            "reads" => &mut limits.reads,
            "msg" => &mut limits.msg,
            "mtu" => {
                self.mtu = (1..=5).find(|m| 128 << m == number).expect("VERBS_STAND_IN_DEVICES: mtu");
                return;
            }
            "gids" => {
                self.gids = number as usize;
                return;
            }
            "ports" => {
                self.ports = number as u8;
                return;
            }
            "mrsize" => {
                limits.mrsize = number;
                return;
            }
            _ => panic!("VERBS_STAND_IN_DEVICES: there is no {key}"),
        };
        *place = number as u32;
    }
}

#[derive(Debug)]
pub struct Settings {
    pub devices: Vec<Profile>,
    pub fabric: String,
    pub host: u8,
    pub delay_us: u64,
    pub reorder: Option<u64>,
    /// There is no thread: what was posted is done by polls.
    pub polled: bool,
    /// Which send request of the process, and its status.
    pub status: Vec<(u64, u32)>,
}

fn var(name: &str) -> Option<String> {
    std::env::var(format!("VERBS_STAND_IN_{name}")).ok().filter(|text| !text.is_empty())
}

pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let devices = var("DEVICES").unwrap_or_else(|| "sv0".into());
        let names = devices.split(';').filter(|d| !d.is_empty() && *d != "none");
        let status = var("STATUS").unwrap_or_default();
        let pairs = status.split(',').filter_map(|item| item.split_once('@'));
        Settings {
            devices: names.zip(1..).map(|(text, number)| Profile::parse(text, number)).collect(),
            fabric: var("FABRIC").unwrap_or_else(|| "default".into()),
            host: var("HOST").and_then(|h| h.parse().ok()).unwrap_or(1),
            delay_us: var("DELAY_US").and_then(|d| d.parse().ok()).unwrap_or(0),
            polled: var("POLLED").is_some(),
            reorder: var("REORDER").and_then(|r| r.parse().ok()),
            status: pairs.filter_map(|(s, n)| Some((n.parse().ok()?, s.parse().ok()?))).collect(),
        }
    })
}
