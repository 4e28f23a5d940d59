//! What an endpoint takes from the `fi_info` it is opened with.

use libfabric_sys as fi;
use wire::Addr;

use super::auth::AuthKey;
use super::{addr, answer, caps};
use crate::errno::Errno;
use crate::param;

/// Everything fi_endpoint needs of its info, defaults filled in.
#[derive(Clone, Debug)]
pub(crate) struct EpAttrs {
    /// Where to bind the link: port 0 lets it choose. Never a wildcard address.
    pub bind: Addr,
    /// `FI_SOCKADDR_IN` or `FI_SOCKADDR_IN6`: how fi_getname answers (see [`addr::to_sockaddr`]).
    pub addr_format: u32,
    /// `fi_info::caps` with the directions of each primary capability explicit.
    pub caps: u64,
    /// Default operation flags.
    pub tx_op_flags: u64,
    pub rx_op_flags: u64,
    pub inject_size: usize,
    pub tx_size: usize,
    pub rx_size: usize,
    /// The application will bind a shared receive context.
    pub shared_rx: bool,
    pub max_msg_size: usize,
    /// Its authorization key, unless it is the domain's.
    pub auth_key: Option<AuthKey>,
}

/// Where endpoints of an info are, if it says so.
///
/// # Safety
/// The addresses of `info` are valid.
pub(crate) unsafe fn address(info: &fi::fi_info) -> Result<Option<Addr>, Errno> {
    // SAFETY: the caller's promise.
    let (src, dest) = unsafe {
        (addr::optional(info.src_addr, info.src_addrlen)?, addr::optional(info.dest_addr, info.dest_addrlen)?)
    };
    Ok(src.map(addr::named).or_else(|| dest.map(addr::towards)))
}

/// Reads an info handed to fi_endpoint. `api_version` is `Shared::api_version`.
///
/// # Safety
/// `info` and the attributes it points to are valid, as fi_endpoint(3) demands.
pub(crate) unsafe fn ep_attrs(info: &fi::fi_info, api_version: u32) -> Result<EpAttrs, Errno> {
    // Nothing an endpoint needs was added to these structures since 1.17.
    let _ = api_version;
    // SAFETY: the caller's promise.
    let bind = unsafe { address(info)? };
    let bind = bind.unwrap_or_else(|| addr::own(info.addr_format == fi::FI_SOCKADDR_IN6));
    // SAFETY: the caller's promise; these two have not changed their size since 1.10.
    let (tx, rx) = unsafe {
        (
            info.tx_attr.as_ref().copied().unwrap_or_default(),
            info.rx_attr.as_ref().copied().unwrap_or_default(),
        )
    };
    let (mut kind, mut shared_rx, mut tx_cnt, mut max_msg_size) = (fi::FI_EP_RDM, false, 1, 0);
    let mut auth_key = None;
    if !info.ep_attr.is_null() {
        let ep = info.ep_attr;
        // SAFETY: the caller's promise; only fields that every version has are read, through places
        // that form no reference.
        unsafe {
            kind = (*ep).type_;
            shared_rx = (*ep).rx_ctx_cnt == fi::FI_SHARED_CONTEXT;
            tx_cnt = (*ep).tx_ctx_cnt;
            max_msg_size = (*ep).max_msg_size;
            auth_key = AuthKey::read((*ep).auth_key, (*ep).auth_key_size)?;
        }
    }
    if answer::endpoint_type(kind).is_err() || tx_cnt > 1 {
        return Err(Errno::INVAL);
    }
    let or = |size: usize, default: usize| if size == 0 { default } else { size.min(default) };
    Ok(EpAttrs {
        bind,
        addr_format: match info.addr_format {
            fi::FI_SOCKADDR_IN | fi::FI_SOCKADDR_IN6 => info.addr_format,
            _ => addr::format_of(bind),
        },
        caps: if info.caps == 0 { caps::granted(0) } else { caps::expand(info.caps) },
        tx_op_flags: tx.op_flags,
        rx_op_flags: rx.op_flags,
        inject_size: match tx.inject_size {
            0 => param::get().inject_size,
            size => size.min(param::get().most_inject()),
        },
        tx_size: tx.size,
        rx_size: rx.size,
        shared_rx,
        max_msg_size: or(max_msg_size, answer::MAX_MSG_SIZE),
        auth_key,
    })
}
