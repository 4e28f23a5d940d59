//! Parameters: environment variables `FI_STRAIT_*`, listed by `fi_info -e`.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use below::BelowOptions;
use libfabric_sys as fi;
use link::{OpenOptions, Port, Ports, TcpOptions};
use settings::{Kind, Reading, Setting};
use wire::Addr;
use wire::session::JobKey;

use crate::info::limits::{INJECT_SIZE, MOST_INJECT};
use crate::job;

mod links;

pub(crate) use links::Links;

/// What the user may tune.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    /// What the user chose.
    eager_size: Option<usize>,
    pub ring_size: usize,
    /// To the first few peers.
    pub long_ring_size: usize,
    pub cma: bool,
    pub device_direct: bool,
    pub fault_handler: bool,
    pub copy_agent: CopyAgent,
    pub connect_timeout: Duration,
    pub memory: Memory,
    /// What is answered to hints that do not say.
    pub inject_size: usize,
    pub links: Links,
    job_key: Option<JobKey>,
    pub tcp: Tcp,
    /// After which idle connections of a device are closed.
    pub verbs_idle: Option<Duration>,
    pub xpu_mode: XpuMode,
}

/// `FI_STRAIT_XPU_MODE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum XpuMode {
    Auto,
    Performance,
    Economy,
}

impl XpuMode {
    /// Of its name, in any case of letters.
    pub(crate) fn of(name: &str) -> Option<XpuMode> {
        match name.to_ascii_lowercase().as_str() {
            "auto" => Some(XpuMode::Auto),
            "performance" => Some(XpuMode::Performance),
            "economy" => Some(XpuMode::Economy),
            _ => None,
        }
    }
}

/// How much memory a domain takes, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub unexpected: usize,
    /// Of all peers together.
    pub peers: usize,
    /// What each member of a group shares.
    pub group: usize,
}

/// Of the link over TCP.
#[derive(Clone, Debug)]
pub(crate) struct Tcp {
    pub timeout: Duration,
    pub linger: Duration,
    pub rails: usize,
    pub ports: Ports,
}

/// The command whose process copies where this one may not call CUDA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CopyAgent {
    No,
    /// The one that was installed with the provider.
    Beside,
    At(PathBuf),
}

/// Where nothing but frames is there to be compared with.
const EAGER_SIZE: usize = 8192;

impl Default for Params {
    fn default() -> Params {
        let link = OpenOptions::default();
        Params {
            eager_size: None,
            ring_size: link.ring,
            long_ring_size: link.long_ring,
            cma: link.cma,
            device_direct: link.device_direct,
            fault_handler: true,
            copy_agent: CopyAgent::Beside,
            connect_timeout: link.connect_timeout,
            memory: Memory { unexpected: 256 << 20, peers: 2 << 30, group: 64 << 10 },
            inject_size: INJECT_SIZE,
            links: Links::default(),
            job_key: None,
            tcp: Tcp {
                timeout: Duration::from_secs(30),
                linger: Duration::from_secs(5),
                rails: 1,
                ports: Ports::default(),
            },
            verbs_idle: None,
            xpu_mode: XpuMode::Auto,
        }
    }
}

impl Params {
    /// Bytes up to which messages travel inside a frame.
    pub(crate) fn eager_size(&self) -> usize {
        self.eager_size.unwrap_or_else(|| if self.cma { link::eager_size() } else { EAGER_SIZE })
    }

    /// Up to which they do if they are many in a row. A value that is set for the one holds for the other,
    /// too.
    pub(crate) fn eager_in_a_row(&self) -> usize {
        self.eager_size.unwrap_or_else(|| if self.cma { link::eager_in_a_row() } else { EAGER_SIZE })
    }

    /// Up to which they do if they go one way. The value that is set for the first holds here, too.
    pub(crate) fn eager_one_way(&self) -> usize {
        self.eager_size.unwrap_or_else(|| if self.cma { link::eager_one_way() } else { EAGER_SIZE })
    }

    /// Most bytes of an injected message: what every ring's frames have room for.
    pub(crate) fn most_inject(&self) -> usize {
        MOST_INJECT.min(link::eager_most(self.ring_size))
    }

    /// How to open an endpoint's link.
    pub(crate) fn link(&self, bind: Addr) -> OpenOptions {
        OpenOptions {
            bind: Some(bind.sock()),
            ring: self.ring_size,
            long_ring: self.long_ring_size,
            eager: self.eager_size(),
            eager_in_a_row: self.eager_in_a_row(),
            eager_one_way: self.eager_one_way(),
            cma: self.cma,
            device_direct: self.device_direct,
            connect_timeout: self.connect_timeout,
            patience: self.connect_timeout,
            port: if self.links.listens() { Port::Listens } else { Port::Reserved },
            ports: self.tcp.ports,
            ..OpenOptions::default()
        }
    }

    /// How to open its link over TCP, if there is to be one.
    pub(crate) fn tcp(&self) -> Option<TcpOptions> {
        let key = self.job_key.clone().unwrap_or_else(job::key);
        let mut options = TcpOptions::new(key);
        options.secret = self.job_key.is_some();
        options.timeout = self.tcp.timeout;
        options.linger = self.tcp.linger;
        options.rails = self.tcp.rails;
        options.connect_timeout = self.connect_timeout;
        if let Some(eager) = self.eager_size {
            (options.eager, options.eager_in_a_row) = (eager, eager);
        }
        self.links.listens().then_some(options)
    }

    /// How to open one over a network below, whose connections have these options.
    pub(crate) fn below(&self, tcp: &TcpOptions) -> BelowOptions {
        let mut options = BelowOptions::new(tcp.key.clone());
        options.fallback = self.links.tcp;
        options.patience = self.tcp.timeout;
        options.linger = tcp.linger;
        options.idle = self.verbs_idle;
        if let Some(eager) = self.eager_size {
            (options.eager, options.eager_in_a_row) = (eager, eager);
        }
        options
    }
}

static PARAMS: OnceLock<Params> = OnceLock::new();

/// The parameters, defaults before they have been read.
pub(crate) fn get() -> Params {
    PARAMS.get().cloned().unwrap_or_default()
}

/// Sets the command, in a process of a test.
#[cfg(test)]
pub(crate) fn set_copy_agent(copy_agent: CopyAgent) {
    let _ = PARAMS.set(Params { copy_agent, ..Params::default() });
}

/// Sets the links, in a process of a test.
#[cfg(test)]
pub(crate) fn set_links(list: &str) {
    let _ = PARAMS.set(tests::with_links(list));
}

/// Declares and reads the parameters; values that cannot be used are logged.
///
/// # Safety
/// `provider` is the structure returned from `fi_prov_ini`, with its name set.
pub(crate) unsafe fn read(core: &fi::Core, provider: *mut fi::fi_provider) {
    let (params, complaints) = interpret(|setting| {
        if let Kind::Secret(_) = setting.kind {
            let (name, help) = names(setting);
            // The core would write its value to the log.
            // SAFETY: the caller's promise; every name is defined with this one type.
            unsafe { core.param_define(provider, &name, fi::FI_PARAM_STRING, &help) };
            let value = std::env::var_os(setting.variable())?;
            return setting.text(value).map_err(|complaint| log::warn!("{complaint}")).ok();
        }
        // SAFETY: the caller's promise; every name is defined with this one type.
        unsafe { declared(core, provider, setting) }
    });
    let names: Vec<String> = std::env::vars_os().map(|(k, _)| k.to_string_lossy().into_owned()).collect();
    for line in complaints.into_iter().chain(settings::unknown(names.iter().map(String::as_str))) {
        log::warn!("{line}");
    }
    let _ = PARAMS.set(params);
}

/// Declares a parameter and reads it, as a string whatever it is: of a number the core would take what it can
/// read for all of it.
///
/// # Safety
/// As of [`read`]; the parameter is declared with this type alone.
pub(crate) unsafe fn declared(
    core: &fi::Core,
    provider: *mut fi::fi_provider,
    setting: &Setting,
) -> Option<String> {
    let (name, help) = names(setting);
    // SAFETY: the caller's promise.
    let value = unsafe { core.param_string(provider, &name, &help) };
    value.map(|v| v.to_string_lossy().into_owned())
}

/// What the core has of a parameter: its name, and its help.
fn names(setting: &Setting) -> (CString, CString) {
    [setting.name.to_owned(), setting.description()].map(|s| CString::new(s).unwrap_or_default()).into()
}

/// The parameters where `text` says what each was set to, and what there is to complain of.
fn interpret(text: impl Fn(&Setting) -> Option<String>) -> (Params, Vec<String>) {
    const ANY: usize = usize::MAX;
    let mut complaints = Vec::new();
    let mut read = |setting: Setting, fits: usize| {
        let mut reading = text(&setting).map(|t| setting.check(&t)).unwrap_or_default();
        reading.fit(&setting, fits as u64);
        complaints.extend(reading.complaint.clone());
        reading
    };
    let size = |reading: Reading| reading.number().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let mut p = Params::default();
    if let Some(n) = size(read(settings::RING_SIZE, ANY)) {
        (p.ring_size, p.long_ring_size) = (n, n);
    }
    p.eager_size = size(read(settings::EAGER_SIZE, link::eager_most(p.ring_size)));
    p.inject_size = size(read(settings::INJECT_SIZE, link::eager_most(p.ring_size))).unwrap_or(p.inject_size);
    p.memory.unexpected = size(read(settings::UNEXPECTED_SIZE, ANY)).unwrap_or(p.memory.unexpected);
    let least = p.memory.peers.max(p.memory.unexpected.saturating_mul(4));
    p.memory.peers = size(read(settings::PEER_MEMORY, ANY)).unwrap_or(least);
    p.memory.unexpected = p.memory.unexpected.min(p.memory.peers / 2);
    p.memory.group = size(read(settings::GROUP_MEMORY, ANY)).unwrap_or(p.memory.group);
    p.cma = read(settings::CMA, ANY).switch().unwrap_or(p.cma);
    p.device_direct = read(settings::DEVICE_DIRECT, ANY).switch().unwrap_or(p.device_direct);
    let writes = read(settings::OFI_WRITES, ANY).switch();
    let (port, gid) = (read(settings::VERBS_PORT, ANY).number(), read(settings::VERBS_GID, ANY).number());
    let idle = read(settings::VERBS_IDLE, ANY).number().filter(|seconds| *seconds > 0);
    p.verbs_idle = idle.map(Duration::from_secs);
    let on_demand = read(settings::VERBS_ON_DEMAND, ANY).switch().unwrap_or(false);
    let rails = read(settings::VERBS_RAILS, ANY).number().and_then(|n| usize::try_from(n).ok());
    p.fault_handler = read(settings::FAULT_HANDLER, ANY).switch().unwrap_or(p.fault_handler);
    if let Some(ms) = read(settings::CONNECT_TIMEOUT, ANY).number() {
        p.connect_timeout = Duration::from_millis(ms);
    }
    if let Some(ms) = read(settings::TCP_TIMEOUT, ANY).number() {
        p.tcp.timeout = Duration::from_millis(ms);
    }
    if let Some(ms) = read(settings::TCP_LINGER, ANY).number() {
        p.tcp.linger = Duration::from_millis(ms);
    }
    p.tcp.rails = size(read(settings::TCP_RAILS, ANY)).unwrap_or(p.tcp.rails);
    if let Some((first, last)) = read(settings::PORTS, ANY).ports() {
        p.tcp.ports = Ports::between(first, last);
    }
    // The log has read its own before all others (crate::log).
    read(settings::LOG, ANY);
    read(settings::LOG_FILE, ANY);
    let mut word = |setting: Setting| {
        let text = text(&setting)?;
        complaints.extend(setting.check(&text).complaint);
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    p.links = word(settings::LINKS).and_then(|list| Links::of(&list)).unwrap_or(p.links);
    p.xpu_mode = word(settings::XPU_MODE).and_then(|name| XpuMode::of(&name)).unwrap_or(p.xpu_mode);
    p.links.writes = writes.unwrap_or(p.links.writes);
    let (device, mtu) = (word(settings::VERBS_DEVICE), word(settings::VERBS_MTU));
    if let Some(verbs) = &mut p.links.verbs {
        // As the table has it, both numbers are of a byte.
        let byte = |n: Option<u64>| n.and_then(|n| u8::try_from(n).ok());
        let mtu = mtu.filter(|text| settings::VERBS_MTU.check(text).complaint.is_none());
        (verbs.device, verbs.port, verbs.gid) = (device, byte(port), byte(gid));
        verbs.mtu = mtu.and_then(|text| text.parse().ok());
        verbs.on_demand = on_demand;
        verbs.rails = rails.unwrap_or(verbs.rails);
        verbs.ports = p.tcp.ports;
    }
    p.copy_agent = match word(settings::COPY_AGENT).as_deref() {
        None | Some("auto") => CopyAgent::Beside,
        Some("no") => CopyAgent::No,
        Some(path) => CopyAgent::At(path.into()),
    };
    p.job_key = word(settings::JOB_KEY).map(|secret| JobKey::from_secret(secret.as_bytes()));
    (p, complaints)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Those of a process that sets its links.
    pub(crate) fn with_links(list: &str) -> Params {
        with(&[("links", list)]).0
    }

    pub(super) fn with(set: &[(&str, &str)]) -> (Params, Vec<String>) {
        interpret(|s| set.iter().find(|(name, _)| *name == s.name).map(|(_, text)| (*text).to_owned()))
    }

    #[test]
    fn the_table_says_what_holds_by_default() {
        let (p, complaints) = with(&[]);
        assert_eq!(complaints, Vec::<String>::new());
        let first = |s: Setting| s.default.split([' ', ',']).next().unwrap_or_default().to_owned();
        let says = |s: Setting, n: usize| assert_eq!(first(s), n.to_string(), "{}", s.name);
        says(settings::EAGER_SIZE, EAGER_SIZE);
        says(settings::RING_SIZE, p.long_ring_size);
        assert!(settings::RING_SIZE.default.contains(&p.ring_size.to_string()));
        let counts =
            format!("first {} peers, {} to {} more", link::NEAR, link::MIDDLE_RING, link::FEW - link::NEAR);
        assert!(settings::RING_SIZE.default.contains(&counts), "{counts}");
        says(settings::INJECT_SIZE, p.inject_size);
        says(settings::UNEXPECTED_SIZE, p.memory.unexpected);
        says(settings::PEER_MEMORY, p.memory.peers);
        says(settings::GROUP_MEMORY, p.memory.group);
        says(settings::CONNECT_TIMEOUT, p.connect_timeout.as_millis() as usize);
        says(settings::TCP_TIMEOUT, p.tcp.timeout.as_millis() as usize);
        says(settings::TCP_LINGER, p.tcp.linger.as_millis() as usize);
        says(settings::TCP_RAILS, p.tcp.rails);
        says(settings::VERBS_IDLE, p.verbs_idle.map_or(0, |idle| idle.as_secs() as usize));
        says(settings::VERBS_RAILS, verbs::Options::default().rails);
        assert_eq!(XpuMode::of(&first(settings::XPU_MODE)), Some(p.xpu_mode));
        let listed = settings::LINKS.default.split(' ').next().and_then(Links::of);
        assert_eq!(listed, Some(Links { ofi: links::Ofi::No, ..p.links }));
        let switches = [
            (settings::CMA, p.cma),
            (settings::DEVICE_DIRECT, p.device_direct),
            (settings::FAULT_HANDLER, p.fault_handler),
            (settings::OFI_WRITES, p.links.writes),
            (settings::VERBS_ON_DEMAND, verbs::Options::default().on_demand),
        ];
        for (s, on) in switches {
            assert_eq!(first(s), if on { "yes" } else { "no" });
        }
        let (least, most) = (link::MIN_RING as u64, link::MAX_RING as u64);
        assert_eq!(settings::RING_SIZE.kind, settings::Kind::Bytes { least, most });
        let most = MOST_INJECT as u64;
        assert_eq!(settings::INJECT_SIZE.kind, settings::Kind::Bytes { least: 0, most });
    }

    #[test]
    fn values_arrive_where_they_are_used() {
        let (p, complaints) = with(&[
            ("eager_size", "16K"),
            ("ring_size", "1M"),
            ("inject_size", "64"),
            ("unexpected_size", "2G"),
            ("cma", "off"),
            ("device_direct", "0"),
            ("fault_handler", "no"),
            ("copy_agent", "no"),
            ("connect_timeout", "50"),
            ("tcp_rails", "2"),
            ("xpu_mode", " Economy "),
        ]);
        assert_eq!(complaints, Vec::<String>::new());
        assert_eq!((p.eager_size(), p.eager_in_a_row(), p.eager_one_way()), (16 << 10, 16 << 10, 16 << 10));
        assert_eq!((p.ring_size, p.long_ring_size), (1 << 20, 1 << 20));
        assert_eq!((p.inject_size, p.memory.unexpected), (64, 2 << 30));
        assert_eq!(p.memory.peers, 8 << 30, "four times that");
        let (p_small, _) = with(&[("unexpected_size", "1G"), ("peer_memory", "1G")]);
        assert_eq!((p_small.memory.unexpected, p_small.memory.peers), (512 << 20, 1 << 30));
        assert_eq!((p.cma, p.device_direct, p.fault_handler), (false, false, false));
        assert_eq!((&p.copy_agent, p.xpu_mode), (&CopyAgent::No, XpuMode::Economy));
        assert_eq!(with(&[("copy_agent", "auto")]).0.copy_agent, CopyAgent::Beside);
        assert_eq!(with(&[("copy_agent", "/opt/strait")]).0.copy_agent, CopyAgent::At("/opt/strait".into()));
        assert_eq!(p.connect_timeout, Duration::from_millis(50));
        assert_eq!(p.tcp().map(|tcp| tcp.rails), Some(2));
    }

    #[test]
    fn a_job_key_is_a_secret_where_one_is_set() {
        let (p, complaints) = with(&[("job_key", " abc "), ("tcp_timeout", "5000")]);
        assert_eq!(complaints, Vec::<String>::new());
        let tcp = p.tcp().unwrap();
        assert_eq!((tcp.key, tcp.secret), (JobKey::from_secret(b"abc"), true));
        assert_eq!(tcp.timeout, Duration::from_secs(5));
        assert!(!with(&[]).0.tcp().unwrap().secret);
        assert!(!format!("{p:?}").contains("abc"));
    }

    #[test]
    fn each_value_that_does_not_hold_is_logged_once() {
        let (p, complaints) = with(&[("ring_size", "abc"), ("connect_timeout", "-5"), ("inject_size", "1M")]);
        assert_eq!((p.ring_size, p.inject_size), (link::DEFAULT_RING, MOST_INJECT));
        assert_eq!(p.connect_timeout, Params::default().connect_timeout);
        assert_eq!(complaints.len(), 3, "{complaints:?}");
        // What no frame of the ring has room for.
        let (p, complaints) = with(&[("ring_size", "24K"), ("eager_size", "64K")]);
        assert_eq!(p.eager_size(), link::eager_most(24 << 10));
        assert!(complaints[0].contains("FI_STRAIT_EAGER_SIZE=65536"), "{complaints:?}");
        assert!(complaints[0].contains(&p.eager_size().to_string()), "{complaints:?}");
        let (p, complaints) = with(&[("ring_size", "24K"), ("inject_size", "16K")]);
        assert_eq!((p.inject_size, p.most_inject()), (p.most_inject(), link::eager_most(24 << 10)));
        assert!(complaints[0].contains("FI_STRAIT_INJECT_SIZE=16384"), "{complaints:?}");
        let (p, complaints) = with(&[("inject_size", "16K")]);
        assert_eq!((p.inject_size, p.most_inject(), complaints.len()), (16 << 10, 16 << 10, 0));
    }
}
