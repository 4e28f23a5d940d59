// Checked-in output of bindgen: do not edit, run regen.sh.
//
// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Derived from the public headers of libibverbs (infiniband/verbs.h, infiniband/verbs_api.h,
// infiniband/ib_user_ioctl_verbs.h), which are Copyright (c) Topspin Communications, Intel Corporation,
// Cisco Systems, Inc., PathScale, Inc., Mellanox Technologies, Ltd. and others, and available under
// a choice of the GNU General Public License version 2 or the OpenIB.org BSD licence.
//
// Headers: rdma-core master 691953d8d502f54088f776c5ba2aeed0a5ac945d (2026-08-20, 65.0)
// Tool: bindgen 0.72.1

use libc::{pthread_cond_t, pthread_mutex_t, timespec};

pub const IBV_ACCESS_OPTIONAL_FIRST: u32 = 1048576;
pub const IBV_DEVICE_RAW_SCATTER_FCS: u64 = 17179869184;
pub const IBV_DEVICE_PCI_WRITE_END_PADDING: u64 = 68719476736;
pub const IBV_DEVICE_CC_DMA_BOUNCE: u64 = 2199023255552;
#[repr(C)]
#[derive(Copy, Clone)]
pub union __atomic_wide_counter {
    pub __value64: libc::c_ulonglong,
    pub __value32: __atomic_wide_counter__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct __atomic_wide_counter__bindgen_ty_1 {
    pub __low: libc::c_uint,
    pub __high: libc::c_uint,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of __atomic_wide_counter__bindgen_ty_1"]
        [::core::mem::size_of::<__atomic_wide_counter__bindgen_ty_1>() - 8usize];
    ["Alignment of __atomic_wide_counter__bindgen_ty_1"]
        [::core::mem::align_of::<__atomic_wide_counter__bindgen_ty_1>() - 4usize];
    ["Offset of field: __atomic_wide_counter__bindgen_ty_1::__low"]
        [::core::mem::offset_of!(__atomic_wide_counter__bindgen_ty_1, __low) - 0usize];
    ["Offset of field: __atomic_wide_counter__bindgen_ty_1::__high"]
        [::core::mem::offset_of!(__atomic_wide_counter__bindgen_ty_1, __high) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of __atomic_wide_counter"][::core::mem::size_of::<__atomic_wide_counter>() - 8usize];
    ["Alignment of __atomic_wide_counter"]
        [::core::mem::align_of::<__atomic_wide_counter>() - 8usize];
    ["Offset of field: __atomic_wide_counter::__value64"]
        [::core::mem::offset_of!(__atomic_wide_counter, __value64) - 0usize];
    ["Offset of field: __atomic_wide_counter::__value32"]
        [::core::mem::offset_of!(__atomic_wide_counter, __value32) - 0usize];
};
impl Default for __atomic_wide_counter {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type __u16 = libc::c_ushort;
pub type __u32 = libc::c_uint;
pub type __u64 = libc::c_ulonglong;
pub type __be16 = __u16;
pub type __be32 = __u32;
pub type __be64 = __u64;
pub const IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM: ib_uverbs_flow_action_esp_keymat = 0;
pub type ib_uverbs_flow_action_esp_keymat = libc::c_uint;
pub const IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE: ib_uverbs_flow_action_esp_replay = 0;
pub const IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP: ib_uverbs_flow_action_esp_replay = 1;
pub type ib_uverbs_flow_action_esp_replay = libc::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ib_uverbs_flow_action_esp_encap {
    pub anon1: ib_uverbs_flow_action_esp_encap__bindgen_ty_1,
    pub anon2: ib_uverbs_flow_action_esp_encap__bindgen_ty_2,
    pub len: __u16,
    pub type_: __u16,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ib_uverbs_flow_action_esp_encap__bindgen_ty_1 {
    pub val_ptr: *mut libc::c_void,
    pub val_ptr_data_u64: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ib_uverbs_flow_action_esp_encap__bindgen_ty_1"]
        [::core::mem::size_of::<ib_uverbs_flow_action_esp_encap__bindgen_ty_1>() - 8usize];
    ["Alignment of ib_uverbs_flow_action_esp_encap__bindgen_ty_1"]
        [::core::mem::align_of::<ib_uverbs_flow_action_esp_encap__bindgen_ty_1>() - 8usize];
    ["Offset of field: ib_uverbs_flow_action_esp_encap__bindgen_ty_1::val_ptr"]
        [::core::mem::offset_of!(ib_uverbs_flow_action_esp_encap__bindgen_ty_1, val_ptr) - 0usize];
    ["Offset of field: ib_uverbs_flow_action_esp_encap__bindgen_ty_1::val_ptr_data_u64"][::core::mem::offset_of!(
        ib_uverbs_flow_action_esp_encap__bindgen_ty_1,
        val_ptr_data_u64
    )
        - 0usize];
};
impl Default for ib_uverbs_flow_action_esp_encap__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ib_uverbs_flow_action_esp_encap__bindgen_ty_2 {
    pub next_ptr: *mut ib_uverbs_flow_action_esp_encap,
    pub next_ptr_data_u64: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ib_uverbs_flow_action_esp_encap__bindgen_ty_2"]
        [::core::mem::size_of::<ib_uverbs_flow_action_esp_encap__bindgen_ty_2>() - 8usize];
    ["Alignment of ib_uverbs_flow_action_esp_encap__bindgen_ty_2"]
        [::core::mem::align_of::<ib_uverbs_flow_action_esp_encap__bindgen_ty_2>() - 8usize];
    ["Offset of field: ib_uverbs_flow_action_esp_encap__bindgen_ty_2::next_ptr"]
        [::core::mem::offset_of!(ib_uverbs_flow_action_esp_encap__bindgen_ty_2, next_ptr) - 0usize];
    ["Offset of field: ib_uverbs_flow_action_esp_encap__bindgen_ty_2::next_ptr_data_u64"][::core::mem::offset_of!(
        ib_uverbs_flow_action_esp_encap__bindgen_ty_2,
        next_ptr_data_u64
    )
        - 0usize];
};
impl Default for ib_uverbs_flow_action_esp_encap__bindgen_ty_2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ib_uverbs_flow_action_esp_encap"]
        [::core::mem::size_of::<ib_uverbs_flow_action_esp_encap>() - 24usize];
    ["Alignment of ib_uverbs_flow_action_esp_encap"]
        [::core::mem::align_of::<ib_uverbs_flow_action_esp_encap>() - 8usize];
    ["Offset of field: ib_uverbs_flow_action_esp_encap::len"]
        [::core::mem::offset_of!(ib_uverbs_flow_action_esp_encap, len) - 16usize];
    ["Offset of field: ib_uverbs_flow_action_esp_encap::type_"]
        [::core::mem::offset_of!(ib_uverbs_flow_action_esp_encap, type_) - 18usize];
};
impl Default for ib_uverbs_flow_action_esp_encap {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ib_uverbs_flow_action_esp {
    pub spi: __u32,
    pub seq: __u32,
    pub tfc_pad: __u32,
    pub flags: __u32,
    pub hard_limit_pkts: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ib_uverbs_flow_action_esp"]
        [::core::mem::size_of::<ib_uverbs_flow_action_esp>() - 24usize];
    ["Alignment of ib_uverbs_flow_action_esp"]
        [::core::mem::align_of::<ib_uverbs_flow_action_esp>() - 8usize];
    ["Offset of field: ib_uverbs_flow_action_esp::spi"]
        [::core::mem::offset_of!(ib_uverbs_flow_action_esp, spi) - 0usize];
    ["Offset of field: ib_uverbs_flow_action_esp::seq"]
        [::core::mem::offset_of!(ib_uverbs_flow_action_esp, seq) - 4usize];
    ["Offset of field: ib_uverbs_flow_action_esp::tfc_pad"]
        [::core::mem::offset_of!(ib_uverbs_flow_action_esp, tfc_pad) - 8usize];
    ["Offset of field: ib_uverbs_flow_action_esp::flags"]
        [::core::mem::offset_of!(ib_uverbs_flow_action_esp, flags) - 12usize];
    ["Offset of field: ib_uverbs_flow_action_esp::hard_limit_pkts"]
        [::core::mem::offset_of!(ib_uverbs_flow_action_esp, hard_limit_pkts) - 16usize];
};
pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH: ib_uverbs_advise_mr_advice = 0;
pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE: ib_uverbs_advise_mr_advice = 1;
pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: ib_uverbs_advise_mr_advice = 2;
pub type ib_uverbs_advise_mr_advice = libc::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_gid {
    pub raw: [u8; 16usize],
    pub global: ibv_gid__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_gid__bindgen_ty_1 {
    pub subnet_prefix: __be64,
    pub interface_id: __be64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_gid__bindgen_ty_1"][::core::mem::size_of::<ibv_gid__bindgen_ty_1>() - 16usize];
    ["Alignment of ibv_gid__bindgen_ty_1"]
        [::core::mem::align_of::<ibv_gid__bindgen_ty_1>() - 8usize];
    ["Offset of field: ibv_gid__bindgen_ty_1::subnet_prefix"]
        [::core::mem::offset_of!(ibv_gid__bindgen_ty_1, subnet_prefix) - 0usize];
    ["Offset of field: ibv_gid__bindgen_ty_1::interface_id"]
        [::core::mem::offset_of!(ibv_gid__bindgen_ty_1, interface_id) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_gid"][::core::mem::size_of::<ibv_gid>() - 16usize];
    ["Alignment of ibv_gid"][::core::mem::align_of::<ibv_gid>() - 8usize];
    ["Offset of field: ibv_gid::raw"][::core::mem::offset_of!(ibv_gid, raw) - 0usize];
    ["Offset of field: ibv_gid::global"][::core::mem::offset_of!(ibv_gid, global) - 0usize];
};
impl Default for ibv_gid {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_GID_TYPE_IB: ibv_gid_type = 0;
pub const IBV_GID_TYPE_ROCE_V1: ibv_gid_type = 1;
pub const IBV_GID_TYPE_ROCE_V2: ibv_gid_type = 2;
pub type ibv_gid_type = libc::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_gid_entry"][::core::mem::size_of::<ibv_gid_entry>() - 32usize];
    ["Alignment of ibv_gid_entry"][::core::mem::align_of::<ibv_gid_entry>() - 8usize];
    ["Offset of field: ibv_gid_entry::gid"][::core::mem::offset_of!(ibv_gid_entry, gid) - 0usize];
    ["Offset of field: ibv_gid_entry::gid_index"]
        [::core::mem::offset_of!(ibv_gid_entry, gid_index) - 16usize];
    ["Offset of field: ibv_gid_entry::port_num"]
        [::core::mem::offset_of!(ibv_gid_entry, port_num) - 20usize];
    ["Offset of field: ibv_gid_entry::gid_type"]
        [::core::mem::offset_of!(ibv_gid_entry, gid_type) - 24usize];
    ["Offset of field: ibv_gid_entry::ndev_ifindex"]
        [::core::mem::offset_of!(ibv_gid_entry, ndev_ifindex) - 28usize];
};
impl Default for ibv_gid_entry {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_NODE_UNKNOWN: ibv_node_type = -1;
pub const IBV_NODE_CA: ibv_node_type = 1;
pub const IBV_NODE_SWITCH: ibv_node_type = 2;
pub const IBV_NODE_ROUTER: ibv_node_type = 3;
pub const IBV_NODE_RNIC: ibv_node_type = 4;
pub const IBV_NODE_USNIC: ibv_node_type = 5;
pub const IBV_NODE_USNIC_UDP: ibv_node_type = 6;
pub const IBV_NODE_UNSPECIFIED: ibv_node_type = 7;
pub type ibv_node_type = libc::c_int;
pub const IBV_TRANSPORT_UNKNOWN: ibv_transport_type = -1;
pub const IBV_TRANSPORT_IB: ibv_transport_type = 0;
pub const IBV_TRANSPORT_IWARP: ibv_transport_type = 1;
pub const IBV_TRANSPORT_USNIC: ibv_transport_type = 2;
pub const IBV_TRANSPORT_USNIC_UDP: ibv_transport_type = 3;
pub const IBV_TRANSPORT_UNSPECIFIED: ibv_transport_type = 4;
pub type ibv_transport_type = libc::c_int;
pub const IBV_DEVICE_RESIZE_MAX_WR: ibv_device_cap_flags = 1;
pub const IBV_DEVICE_BAD_PKEY_CNTR: ibv_device_cap_flags = 2;
pub const IBV_DEVICE_BAD_QKEY_CNTR: ibv_device_cap_flags = 4;
pub const IBV_DEVICE_RAW_MULTI: ibv_device_cap_flags = 8;
pub const IBV_DEVICE_AUTO_PATH_MIG: ibv_device_cap_flags = 16;
pub const IBV_DEVICE_CHANGE_PHY_PORT: ibv_device_cap_flags = 32;
pub const IBV_DEVICE_UD_AV_PORT_ENFORCE: ibv_device_cap_flags = 64;
pub const IBV_DEVICE_CURR_QP_STATE_MOD: ibv_device_cap_flags = 128;
pub const IBV_DEVICE_SHUTDOWN_PORT: ibv_device_cap_flags = 256;
pub const IBV_DEVICE_INIT_TYPE: ibv_device_cap_flags = 512;
pub const IBV_DEVICE_PORT_ACTIVE_EVENT: ibv_device_cap_flags = 1024;
pub const IBV_DEVICE_SYS_IMAGE_GUID: ibv_device_cap_flags = 2048;
pub const IBV_DEVICE_RC_RNR_NAK_GEN: ibv_device_cap_flags = 4096;
pub const IBV_DEVICE_SRQ_RESIZE: ibv_device_cap_flags = 8192;
pub const IBV_DEVICE_N_NOTIFY_CQ: ibv_device_cap_flags = 16384;
pub const IBV_DEVICE_MEM_WINDOW: ibv_device_cap_flags = 131072;
pub const IBV_DEVICE_UD_IP_CSUM: ibv_device_cap_flags = 262144;
pub const IBV_DEVICE_XRC: ibv_device_cap_flags = 1048576;
pub const IBV_DEVICE_MEM_MGT_EXTENSIONS: ibv_device_cap_flags = 2097152;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2A: ibv_device_cap_flags = 8388608;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: ibv_device_cap_flags = 16777216;
pub const IBV_DEVICE_RC_IP_CSUM: ibv_device_cap_flags = 33554432;
pub const IBV_DEVICE_RAW_IP_CSUM: ibv_device_cap_flags = 67108864;
pub const IBV_DEVICE_MANAGED_FLOW_STEERING: ibv_device_cap_flags = 536870912;
pub type ibv_device_cap_flags = libc::c_uint;
pub const IBV_FORK_DISABLED: ibv_fork_status = 0;
pub const IBV_FORK_ENABLED: ibv_fork_status = 1;
pub const IBV_FORK_UNNEEDED: ibv_fork_status = 2;
pub type ibv_fork_status = libc::c_uint;
pub const IBV_ATOMIC_NONE: ibv_atomic_cap = 0;
pub const IBV_ATOMIC_HCA: ibv_atomic_cap = 1;
pub const IBV_ATOMIC_GLOB: ibv_atomic_cap = 2;
pub type ibv_atomic_cap = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_alloc_dm_attr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_alloc_dm_attr"][::core::mem::size_of::<ibv_alloc_dm_attr>() - 16usize];
    ["Alignment of ibv_alloc_dm_attr"][::core::mem::align_of::<ibv_alloc_dm_attr>() - 8usize];
    ["Offset of field: ibv_alloc_dm_attr::length"]
        [::core::mem::offset_of!(ibv_alloc_dm_attr, length) - 0usize];
    ["Offset of field: ibv_alloc_dm_attr::log_align_req"]
        [::core::mem::offset_of!(ibv_alloc_dm_attr, log_align_req) - 8usize];
    ["Offset of field: ibv_alloc_dm_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_alloc_dm_attr, comp_mask) - 12usize];
};
pub const IBV_DM_MASK_HANDLE: ibv_dm_mask = 1;
pub type ibv_dm_mask = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_dm {
    pub context: *mut ibv_context,
    pub memcpy_to_dm: ::core::option::Option<
        unsafe extern "C" fn(
            dm: *mut ibv_dm,
            dm_offset: u64,
            host_addr: *const libc::c_void,
            length: usize,
        ) -> libc::c_int,
    >,
    pub memcpy_from_dm: ::core::option::Option<
        unsafe extern "C" fn(
            host_addr: *mut libc::c_void,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
        ) -> libc::c_int,
    >,
    pub comp_mask: u32,
    pub handle: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_dm"][::core::mem::size_of::<ibv_dm>() - 32usize];
    ["Alignment of ibv_dm"][::core::mem::align_of::<ibv_dm>() - 8usize];
    ["Offset of field: ibv_dm::context"][::core::mem::offset_of!(ibv_dm, context) - 0usize];
    ["Offset of field: ibv_dm::memcpy_to_dm"]
        [::core::mem::offset_of!(ibv_dm, memcpy_to_dm) - 8usize];
    ["Offset of field: ibv_dm::memcpy_from_dm"]
        [::core::mem::offset_of!(ibv_dm, memcpy_from_dm) - 16usize];
    ["Offset of field: ibv_dm::comp_mask"][::core::mem::offset_of!(ibv_dm, comp_mask) - 24usize];
    ["Offset of field: ibv_dm::handle"][::core::mem::offset_of!(ibv_dm, handle) - 28usize];
};
impl Default for ibv_dm {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device_attr {
    pub fw_ver: [libc::c_char; 64usize],
    pub node_guid: __be64,
    pub sys_image_guid: __be64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: libc::c_int,
    pub max_qp_wr: libc::c_int,
    pub device_cap_flags: libc::c_uint,
    pub max_sge: libc::c_int,
    pub max_sge_rd: libc::c_int,
    pub max_cq: libc::c_int,
    pub max_cqe: libc::c_int,
    pub max_mr: libc::c_int,
    pub max_pd: libc::c_int,
    pub max_qp_rd_atom: libc::c_int,
    pub max_ee_rd_atom: libc::c_int,
    pub max_res_rd_atom: libc::c_int,
    pub max_qp_init_rd_atom: libc::c_int,
    pub max_ee_init_rd_atom: libc::c_int,
    pub atomic_cap: ibv_atomic_cap,
    pub max_ee: libc::c_int,
    pub max_rdd: libc::c_int,
    pub max_mw: libc::c_int,
    pub max_raw_ipv6_qp: libc::c_int,
    pub max_raw_ethy_qp: libc::c_int,
    pub max_mcast_grp: libc::c_int,
    pub max_mcast_qp_attach: libc::c_int,
    pub max_total_mcast_qp_attach: libc::c_int,
    pub max_ah: libc::c_int,
    pub max_fmr: libc::c_int,
    pub max_map_per_fmr: libc::c_int,
    pub max_srq: libc::c_int,
    pub max_srq_wr: libc::c_int,
    pub max_srq_sge: libc::c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_device_attr"][::core::mem::size_of::<ibv_device_attr>() - 232usize];
    ["Alignment of ibv_device_attr"][::core::mem::align_of::<ibv_device_attr>() - 8usize];
    ["Offset of field: ibv_device_attr::fw_ver"]
        [::core::mem::offset_of!(ibv_device_attr, fw_ver) - 0usize];
    ["Offset of field: ibv_device_attr::node_guid"]
        [::core::mem::offset_of!(ibv_device_attr, node_guid) - 64usize];
    ["Offset of field: ibv_device_attr::sys_image_guid"]
        [::core::mem::offset_of!(ibv_device_attr, sys_image_guid) - 72usize];
    ["Offset of field: ibv_device_attr::max_mr_size"]
        [::core::mem::offset_of!(ibv_device_attr, max_mr_size) - 80usize];
    ["Offset of field: ibv_device_attr::page_size_cap"]
        [::core::mem::offset_of!(ibv_device_attr, page_size_cap) - 88usize];
    ["Offset of field: ibv_device_attr::vendor_id"]
        [::core::mem::offset_of!(ibv_device_attr, vendor_id) - 96usize];
    ["Offset of field: ibv_device_attr::vendor_part_id"]
        [::core::mem::offset_of!(ibv_device_attr, vendor_part_id) - 100usize];
    ["Offset of field: ibv_device_attr::hw_ver"]
        [::core::mem::offset_of!(ibv_device_attr, hw_ver) - 104usize];
    ["Offset of field: ibv_device_attr::max_qp"]
        [::core::mem::offset_of!(ibv_device_attr, max_qp) - 108usize];
    ["Offset of field: ibv_device_attr::max_qp_wr"]
        [::core::mem::offset_of!(ibv_device_attr, max_qp_wr) - 112usize];
    ["Offset of field: ibv_device_attr::device_cap_flags"]
        [::core::mem::offset_of!(ibv_device_attr, device_cap_flags) - 116usize];
    ["Offset of field: ibv_device_attr::max_sge"]
        [::core::mem::offset_of!(ibv_device_attr, max_sge) - 120usize];
    ["Offset of field: ibv_device_attr::max_sge_rd"]
        [::core::mem::offset_of!(ibv_device_attr, max_sge_rd) - 124usize];
    ["Offset of field: ibv_device_attr::max_cq"]
        [::core::mem::offset_of!(ibv_device_attr, max_cq) - 128usize];
    ["Offset of field: ibv_device_attr::max_cqe"]
        [::core::mem::offset_of!(ibv_device_attr, max_cqe) - 132usize];
    ["Offset of field: ibv_device_attr::max_mr"]
        [::core::mem::offset_of!(ibv_device_attr, max_mr) - 136usize];
    ["Offset of field: ibv_device_attr::max_pd"]
        [::core::mem::offset_of!(ibv_device_attr, max_pd) - 140usize];
    ["Offset of field: ibv_device_attr::max_qp_rd_atom"]
        [::core::mem::offset_of!(ibv_device_attr, max_qp_rd_atom) - 144usize];
    ["Offset of field: ibv_device_attr::max_ee_rd_atom"]
        [::core::mem::offset_of!(ibv_device_attr, max_ee_rd_atom) - 148usize];
    ["Offset of field: ibv_device_attr::max_res_rd_atom"]
        [::core::mem::offset_of!(ibv_device_attr, max_res_rd_atom) - 152usize];
    ["Offset of field: ibv_device_attr::max_qp_init_rd_atom"]
        [::core::mem::offset_of!(ibv_device_attr, max_qp_init_rd_atom) - 156usize];
    ["Offset of field: ibv_device_attr::max_ee_init_rd_atom"]
        [::core::mem::offset_of!(ibv_device_attr, max_ee_init_rd_atom) - 160usize];
    ["Offset of field: ibv_device_attr::atomic_cap"]
        [::core::mem::offset_of!(ibv_device_attr, atomic_cap) - 164usize];
    ["Offset of field: ibv_device_attr::max_ee"]
        [::core::mem::offset_of!(ibv_device_attr, max_ee) - 168usize];
    ["Offset of field: ibv_device_attr::max_rdd"]
        [::core::mem::offset_of!(ibv_device_attr, max_rdd) - 172usize];
    ["Offset of field: ibv_device_attr::max_mw"]
        [::core::mem::offset_of!(ibv_device_attr, max_mw) - 176usize];
    ["Offset of field: ibv_device_attr::max_raw_ipv6_qp"]
        [::core::mem::offset_of!(ibv_device_attr, max_raw_ipv6_qp) - 180usize];
    ["Offset of field: ibv_device_attr::max_raw_ethy_qp"]
        [::core::mem::offset_of!(ibv_device_attr, max_raw_ethy_qp) - 184usize];
    ["Offset of field: ibv_device_attr::max_mcast_grp"]
        [::core::mem::offset_of!(ibv_device_attr, max_mcast_grp) - 188usize];
    ["Offset of field: ibv_device_attr::max_mcast_qp_attach"]
        [::core::mem::offset_of!(ibv_device_attr, max_mcast_qp_attach) - 192usize];
    ["Offset of field: ibv_device_attr::max_total_mcast_qp_attach"]
        [::core::mem::offset_of!(ibv_device_attr, max_total_mcast_qp_attach) - 196usize];
    ["Offset of field: ibv_device_attr::max_ah"]
        [::core::mem::offset_of!(ibv_device_attr, max_ah) - 200usize];
    ["Offset of field: ibv_device_attr::max_fmr"]
        [::core::mem::offset_of!(ibv_device_attr, max_fmr) - 204usize];
    ["Offset of field: ibv_device_attr::max_map_per_fmr"]
        [::core::mem::offset_of!(ibv_device_attr, max_map_per_fmr) - 208usize];
    ["Offset of field: ibv_device_attr::max_srq"]
        [::core::mem::offset_of!(ibv_device_attr, max_srq) - 212usize];
    ["Offset of field: ibv_device_attr::max_srq_wr"]
        [::core::mem::offset_of!(ibv_device_attr, max_srq_wr) - 216usize];
    ["Offset of field: ibv_device_attr::max_srq_sge"]
        [::core::mem::offset_of!(ibv_device_attr, max_srq_sge) - 220usize];
    ["Offset of field: ibv_device_attr::max_pkeys"]
        [::core::mem::offset_of!(ibv_device_attr, max_pkeys) - 224usize];
    ["Offset of field: ibv_device_attr::local_ca_ack_delay"]
        [::core::mem::offset_of!(ibv_device_attr, local_ca_ack_delay) - 226usize];
    ["Offset of field: ibv_device_attr::phys_port_cnt"]
        [::core::mem::offset_of!(ibv_device_attr, phys_port_cnt) - 227usize];
};
impl Default for ibv_device_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_query_device_ex_input {
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_query_device_ex_input"]
        [::core::mem::size_of::<ibv_query_device_ex_input>() - 4usize];
    ["Alignment of ibv_query_device_ex_input"]
        [::core::mem::align_of::<ibv_query_device_ex_input>() - 4usize];
    ["Offset of field: ibv_query_device_ex_input::comp_mask"]
        [::core::mem::offset_of!(ibv_query_device_ex_input, comp_mask) - 0usize];
};
pub const IBV_ODP_SUPPORT: ibv_odp_general_caps = 1;
pub const IBV_ODP_SUPPORT_IMPLICIT: ibv_odp_general_caps = 2;
pub type ibv_odp_general_caps = libc::c_uint;
pub const IBV_ODP_SUPPORT_SEND: ibv_odp_transport_cap_bits = 1;
pub const IBV_ODP_SUPPORT_RECV: ibv_odp_transport_cap_bits = 2;
pub const IBV_ODP_SUPPORT_WRITE: ibv_odp_transport_cap_bits = 4;
pub const IBV_ODP_SUPPORT_READ: ibv_odp_transport_cap_bits = 8;
pub const IBV_ODP_SUPPORT_ATOMIC: ibv_odp_transport_cap_bits = 16;
pub const IBV_ODP_SUPPORT_SRQ_RECV: ibv_odp_transport_cap_bits = 32;
pub const IBV_ODP_SUPPORT_FLUSH: ibv_odp_transport_cap_bits = 64;
pub const IBV_ODP_SUPPORT_ATOMIC_WRITE: ibv_odp_transport_cap_bits = 128;
pub type ibv_odp_transport_cap_bits = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_odp_caps {
    pub general_caps: u64,
    pub per_transport_caps: ibv_odp_caps__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_odp_caps__bindgen_ty_1 {
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_odp_caps__bindgen_ty_1"]
        [::core::mem::size_of::<ibv_odp_caps__bindgen_ty_1>() - 12usize];
    ["Alignment of ibv_odp_caps__bindgen_ty_1"]
        [::core::mem::align_of::<ibv_odp_caps__bindgen_ty_1>() - 4usize];
    ["Offset of field: ibv_odp_caps__bindgen_ty_1::rc_odp_caps"]
        [::core::mem::offset_of!(ibv_odp_caps__bindgen_ty_1, rc_odp_caps) - 0usize];
    ["Offset of field: ibv_odp_caps__bindgen_ty_1::uc_odp_caps"]
        [::core::mem::offset_of!(ibv_odp_caps__bindgen_ty_1, uc_odp_caps) - 4usize];
    ["Offset of field: ibv_odp_caps__bindgen_ty_1::ud_odp_caps"]
        [::core::mem::offset_of!(ibv_odp_caps__bindgen_ty_1, ud_odp_caps) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_odp_caps"][::core::mem::size_of::<ibv_odp_caps>() - 24usize];
    ["Alignment of ibv_odp_caps"][::core::mem::align_of::<ibv_odp_caps>() - 8usize];
    ["Offset of field: ibv_odp_caps::general_caps"]
        [::core::mem::offset_of!(ibv_odp_caps, general_caps) - 0usize];
    ["Offset of field: ibv_odp_caps::per_transport_caps"]
        [::core::mem::offset_of!(ibv_odp_caps, per_transport_caps) - 8usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_tso_caps {
    pub max_tso: u32,
    pub supported_qpts: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_tso_caps"][::core::mem::size_of::<ibv_tso_caps>() - 8usize];
    ["Alignment of ibv_tso_caps"][::core::mem::align_of::<ibv_tso_caps>() - 4usize];
    ["Offset of field: ibv_tso_caps::max_tso"]
        [::core::mem::offset_of!(ibv_tso_caps, max_tso) - 0usize];
    ["Offset of field: ibv_tso_caps::supported_qpts"]
        [::core::mem::offset_of!(ibv_tso_caps, supported_qpts) - 4usize];
};
pub const IBV_RX_HASH_FUNC_TOEPLITZ: ibv_rx_hash_function_flags = 1;
pub type ibv_rx_hash_function_flags = libc::c_uint;
pub const IBV_RX_HASH_SRC_IPV4: ibv_rx_hash_fields = 1;
pub const IBV_RX_HASH_DST_IPV4: ibv_rx_hash_fields = 2;
pub const IBV_RX_HASH_SRC_IPV6: ibv_rx_hash_fields = 4;
pub const IBV_RX_HASH_DST_IPV6: ibv_rx_hash_fields = 8;
pub const IBV_RX_HASH_SRC_PORT_TCP: ibv_rx_hash_fields = 16;
pub const IBV_RX_HASH_DST_PORT_TCP: ibv_rx_hash_fields = 32;
pub const IBV_RX_HASH_SRC_PORT_UDP: ibv_rx_hash_fields = 64;
pub const IBV_RX_HASH_DST_PORT_UDP: ibv_rx_hash_fields = 128;
pub const IBV_RX_HASH_IPSEC_SPI: ibv_rx_hash_fields = 256;
pub const IBV_RX_HASH_INNER: ibv_rx_hash_fields = 2147483648;
pub type ibv_rx_hash_fields = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_rss_caps {
    pub supported_qpts: u32,
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    pub rx_hash_fields_mask: u64,
    pub rx_hash_function: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_rss_caps"][::core::mem::size_of::<ibv_rss_caps>() - 32usize];
    ["Alignment of ibv_rss_caps"][::core::mem::align_of::<ibv_rss_caps>() - 8usize];
    ["Offset of field: ibv_rss_caps::supported_qpts"]
        [::core::mem::offset_of!(ibv_rss_caps, supported_qpts) - 0usize];
    ["Offset of field: ibv_rss_caps::max_rwq_indirection_tables"]
        [::core::mem::offset_of!(ibv_rss_caps, max_rwq_indirection_tables) - 4usize];
    ["Offset of field: ibv_rss_caps::max_rwq_indirection_table_size"]
        [::core::mem::offset_of!(ibv_rss_caps, max_rwq_indirection_table_size) - 8usize];
    ["Offset of field: ibv_rss_caps::rx_hash_fields_mask"]
        [::core::mem::offset_of!(ibv_rss_caps, rx_hash_fields_mask) - 16usize];
    ["Offset of field: ibv_rss_caps::rx_hash_function"]
        [::core::mem::offset_of!(ibv_rss_caps, rx_hash_function) - 24usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_packet_pacing_caps {
    pub qp_rate_limit_min: u32,
    pub qp_rate_limit_max: u32,
    pub supported_qpts: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_packet_pacing_caps"][::core::mem::size_of::<ibv_packet_pacing_caps>() - 12usize];
    ["Alignment of ibv_packet_pacing_caps"]
        [::core::mem::align_of::<ibv_packet_pacing_caps>() - 4usize];
    ["Offset of field: ibv_packet_pacing_caps::qp_rate_limit_min"]
        [::core::mem::offset_of!(ibv_packet_pacing_caps, qp_rate_limit_min) - 0usize];
    ["Offset of field: ibv_packet_pacing_caps::qp_rate_limit_max"]
        [::core::mem::offset_of!(ibv_packet_pacing_caps, qp_rate_limit_max) - 4usize];
    ["Offset of field: ibv_packet_pacing_caps::supported_qpts"]
        [::core::mem::offset_of!(ibv_packet_pacing_caps, supported_qpts) - 8usize];
};
pub const IBV_RAW_PACKET_CAP_CVLAN_STRIPPING: ibv_raw_packet_caps = 1;
pub const IBV_RAW_PACKET_CAP_SCATTER_FCS: ibv_raw_packet_caps = 2;
pub const IBV_RAW_PACKET_CAP_IP_CSUM: ibv_raw_packet_caps = 4;
pub const IBV_RAW_PACKET_CAP_DELAY_DROP: ibv_raw_packet_caps = 8;
pub type ibv_raw_packet_caps = libc::c_uint;
pub const IBV_TM_CAP_RC: ibv_tm_cap_flags = 1;
pub type ibv_tm_cap_flags = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_tm_caps {
    pub max_rndv_hdr_size: u32,
    pub max_num_tags: u32,
    pub flags: u32,
    pub max_ops: u32,
    pub max_sge: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_tm_caps"][::core::mem::size_of::<ibv_tm_caps>() - 20usize];
    ["Alignment of ibv_tm_caps"][::core::mem::align_of::<ibv_tm_caps>() - 4usize];
    ["Offset of field: ibv_tm_caps::max_rndv_hdr_size"]
        [::core::mem::offset_of!(ibv_tm_caps, max_rndv_hdr_size) - 0usize];
    ["Offset of field: ibv_tm_caps::max_num_tags"]
        [::core::mem::offset_of!(ibv_tm_caps, max_num_tags) - 4usize];
    ["Offset of field: ibv_tm_caps::flags"][::core::mem::offset_of!(ibv_tm_caps, flags) - 8usize];
    ["Offset of field: ibv_tm_caps::max_ops"]
        [::core::mem::offset_of!(ibv_tm_caps, max_ops) - 12usize];
    ["Offset of field: ibv_tm_caps::max_sge"]
        [::core::mem::offset_of!(ibv_tm_caps, max_sge) - 16usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_cq_moderation_caps {
    pub max_cq_count: u16,
    pub max_cq_period: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_cq_moderation_caps"][::core::mem::size_of::<ibv_cq_moderation_caps>() - 4usize];
    ["Alignment of ibv_cq_moderation_caps"]
        [::core::mem::align_of::<ibv_cq_moderation_caps>() - 2usize];
    ["Offset of field: ibv_cq_moderation_caps::max_cq_count"]
        [::core::mem::offset_of!(ibv_cq_moderation_caps, max_cq_count) - 0usize];
    ["Offset of field: ibv_cq_moderation_caps::max_cq_period"]
        [::core::mem::offset_of!(ibv_cq_moderation_caps, max_cq_period) - 2usize];
};
pub const IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP: ibv_pci_atomic_op_size = 1;
pub const IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP: ibv_pci_atomic_op_size = 2;
pub const IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP: ibv_pci_atomic_op_size = 4;
pub type ibv_pci_atomic_op_size = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_pci_atomic_caps {
    pub fetch_add: u16,
    pub swap: u16,
    pub compare_swap: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_pci_atomic_caps"][::core::mem::size_of::<ibv_pci_atomic_caps>() - 6usize];
    ["Alignment of ibv_pci_atomic_caps"][::core::mem::align_of::<ibv_pci_atomic_caps>() - 2usize];
    ["Offset of field: ibv_pci_atomic_caps::fetch_add"]
        [::core::mem::offset_of!(ibv_pci_atomic_caps, fetch_add) - 0usize];
    ["Offset of field: ibv_pci_atomic_caps::swap"]
        [::core::mem::offset_of!(ibv_pci_atomic_caps, swap) - 2usize];
    ["Offset of field: ibv_pci_atomic_caps::compare_swap"]
        [::core::mem::offset_of!(ibv_pci_atomic_caps, compare_swap) - 4usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub odp_caps: ibv_odp_caps,
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: ibv_tso_caps,
    pub rss_caps: ibv_rss_caps,
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: ibv_packet_pacing_caps,
    pub raw_packet_caps: u32,
    pub tm_caps: ibv_tm_caps,
    pub cq_mod_caps: ibv_cq_moderation_caps,
    pub max_dm_size: u64,
    pub pci_atomic_caps: ibv_pci_atomic_caps,
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_device_attr_ex"][::core::mem::size_of::<ibv_device_attr_ex>() - 400usize];
    ["Alignment of ibv_device_attr_ex"][::core::mem::align_of::<ibv_device_attr_ex>() - 8usize];
    ["Offset of field: ibv_device_attr_ex::orig_attr"]
        [::core::mem::offset_of!(ibv_device_attr_ex, orig_attr) - 0usize];
    ["Offset of field: ibv_device_attr_ex::comp_mask"]
        [::core::mem::offset_of!(ibv_device_attr_ex, comp_mask) - 232usize];
    ["Offset of field: ibv_device_attr_ex::odp_caps"]
        [::core::mem::offset_of!(ibv_device_attr_ex, odp_caps) - 240usize];
    ["Offset of field: ibv_device_attr_ex::completion_timestamp_mask"]
        [::core::mem::offset_of!(ibv_device_attr_ex, completion_timestamp_mask) - 264usize];
    ["Offset of field: ibv_device_attr_ex::hca_core_clock"]
        [::core::mem::offset_of!(ibv_device_attr_ex, hca_core_clock) - 272usize];
    ["Offset of field: ibv_device_attr_ex::device_cap_flags_ex"]
        [::core::mem::offset_of!(ibv_device_attr_ex, device_cap_flags_ex) - 280usize];
    ["Offset of field: ibv_device_attr_ex::tso_caps"]
        [::core::mem::offset_of!(ibv_device_attr_ex, tso_caps) - 288usize];
    ["Offset of field: ibv_device_attr_ex::rss_caps"]
        [::core::mem::offset_of!(ibv_device_attr_ex, rss_caps) - 296usize];
    ["Offset of field: ibv_device_attr_ex::max_wq_type_rq"]
        [::core::mem::offset_of!(ibv_device_attr_ex, max_wq_type_rq) - 328usize];
    ["Offset of field: ibv_device_attr_ex::packet_pacing_caps"]
        [::core::mem::offset_of!(ibv_device_attr_ex, packet_pacing_caps) - 332usize];
    ["Offset of field: ibv_device_attr_ex::raw_packet_caps"]
        [::core::mem::offset_of!(ibv_device_attr_ex, raw_packet_caps) - 344usize];
    ["Offset of field: ibv_device_attr_ex::tm_caps"]
        [::core::mem::offset_of!(ibv_device_attr_ex, tm_caps) - 348usize];
    ["Offset of field: ibv_device_attr_ex::cq_mod_caps"]
        [::core::mem::offset_of!(ibv_device_attr_ex, cq_mod_caps) - 368usize];
    ["Offset of field: ibv_device_attr_ex::max_dm_size"]
        [::core::mem::offset_of!(ibv_device_attr_ex, max_dm_size) - 376usize];
    ["Offset of field: ibv_device_attr_ex::pci_atomic_caps"]
        [::core::mem::offset_of!(ibv_device_attr_ex, pci_atomic_caps) - 384usize];
    ["Offset of field: ibv_device_attr_ex::xrc_odp_caps"]
        [::core::mem::offset_of!(ibv_device_attr_ex, xrc_odp_caps) - 392usize];
    ["Offset of field: ibv_device_attr_ex::phys_port_cnt_ex"]
        [::core::mem::offset_of!(ibv_device_attr_ex, phys_port_cnt_ex) - 396usize];
};
impl Default for ibv_device_attr_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_MTU_256: ibv_mtu = 1;
pub const IBV_MTU_512: ibv_mtu = 2;
pub const IBV_MTU_1024: ibv_mtu = 3;
pub const IBV_MTU_2048: ibv_mtu = 4;
pub const IBV_MTU_4096: ibv_mtu = 5;
pub type ibv_mtu = libc::c_uint;
pub const IBV_PORT_NOP: ibv_port_state = 0;
pub const IBV_PORT_DOWN: ibv_port_state = 1;
pub const IBV_PORT_INIT: ibv_port_state = 2;
pub const IBV_PORT_ARMED: ibv_port_state = 3;
pub const IBV_PORT_ACTIVE: ibv_port_state = 4;
pub const IBV_PORT_ACTIVE_DEFER: ibv_port_state = 5;
pub type ibv_port_state = libc::c_uint;
pub const IBV_LINK_LAYER_UNSPECIFIED: _bindgen_ty_13 = 0;
pub const IBV_LINK_LAYER_INFINIBAND: _bindgen_ty_13 = 1;
pub const IBV_LINK_LAYER_ETHERNET: _bindgen_ty_13 = 2;
pub type _bindgen_ty_13 = libc::c_uint;
pub const IBV_PORT_SM: ibv_port_cap_flags = 2;
pub const IBV_PORT_NOTICE_SUP: ibv_port_cap_flags = 4;
pub const IBV_PORT_TRAP_SUP: ibv_port_cap_flags = 8;
pub const IBV_PORT_OPT_IPD_SUP: ibv_port_cap_flags = 16;
pub const IBV_PORT_AUTO_MIGR_SUP: ibv_port_cap_flags = 32;
pub const IBV_PORT_SL_MAP_SUP: ibv_port_cap_flags = 64;
pub const IBV_PORT_MKEY_NVRAM: ibv_port_cap_flags = 128;
pub const IBV_PORT_PKEY_NVRAM: ibv_port_cap_flags = 256;
pub const IBV_PORT_LED_INFO_SUP: ibv_port_cap_flags = 512;
pub const IBV_PORT_SYS_IMAGE_GUID_SUP: ibv_port_cap_flags = 2048;
pub const IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP: ibv_port_cap_flags = 4096;
pub const IBV_PORT_EXTENDED_SPEEDS_SUP: ibv_port_cap_flags = 16384;
pub const IBV_PORT_CAP_MASK2_SUP: ibv_port_cap_flags = 32768;
pub const IBV_PORT_CM_SUP: ibv_port_cap_flags = 65536;
pub const IBV_PORT_SNMP_TUNNEL_SUP: ibv_port_cap_flags = 131072;
pub const IBV_PORT_REINIT_SUP: ibv_port_cap_flags = 262144;
pub const IBV_PORT_DEVICE_MGMT_SUP: ibv_port_cap_flags = 524288;
pub const IBV_PORT_VENDOR_CLASS_SUP: ibv_port_cap_flags = 1048576;
pub const IBV_PORT_DR_NOTICE_SUP: ibv_port_cap_flags = 2097152;
pub const IBV_PORT_CAP_MASK_NOTICE_SUP: ibv_port_cap_flags = 4194304;
pub const IBV_PORT_BOOT_MGMT_SUP: ibv_port_cap_flags = 8388608;
pub const IBV_PORT_LINK_LATENCY_SUP: ibv_port_cap_flags = 16777216;
pub const IBV_PORT_CLIENT_REG_SUP: ibv_port_cap_flags = 33554432;
pub const IBV_PORT_IP_BASED_GIDS: ibv_port_cap_flags = 67108864;
pub type ibv_port_cap_flags = libc::c_uint;
pub const IBV_PORT_SET_NODE_DESC_SUP: ibv_port_cap_flags2 = 1;
pub const IBV_PORT_INFO_EXT_SUP: ibv_port_cap_flags2 = 2;
pub const IBV_PORT_VIRT_SUP: ibv_port_cap_flags2 = 4;
pub const IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP: ibv_port_cap_flags2 = 8;
pub const IBV_PORT_LINK_WIDTH_2X_SUP: ibv_port_cap_flags2 = 16;
pub const IBV_PORT_LINK_SPEED_HDR_SUP: ibv_port_cap_flags2 = 32;
pub const IBV_PORT_LINK_SPEED_NDR_SUP: ibv_port_cap_flags2 = 1024;
pub const IBV_PORT_LINK_SPEED_XDR_SUP: ibv_port_cap_flags2 = 4096;
pub type ibv_port_cap_flags2 = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_port_attr {
    pub state: ibv_port_state,
    pub max_mtu: ibv_mtu,
    pub active_mtu: ibv_mtu,
    pub gid_tbl_len: libc::c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    pub active_speed_ex: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_port_attr"][::core::mem::size_of::<ibv_port_attr>() - 56usize];
    ["Alignment of ibv_port_attr"][::core::mem::align_of::<ibv_port_attr>() - 4usize];
    ["Offset of field: ibv_port_attr::state"]
        [::core::mem::offset_of!(ibv_port_attr, state) - 0usize];
    ["Offset of field: ibv_port_attr::max_mtu"]
        [::core::mem::offset_of!(ibv_port_attr, max_mtu) - 4usize];
    ["Offset of field: ibv_port_attr::active_mtu"]
        [::core::mem::offset_of!(ibv_port_attr, active_mtu) - 8usize];
    ["Offset of field: ibv_port_attr::gid_tbl_len"]
        [::core::mem::offset_of!(ibv_port_attr, gid_tbl_len) - 12usize];
    ["Offset of field: ibv_port_attr::port_cap_flags"]
        [::core::mem::offset_of!(ibv_port_attr, port_cap_flags) - 16usize];
    ["Offset of field: ibv_port_attr::max_msg_sz"]
        [::core::mem::offset_of!(ibv_port_attr, max_msg_sz) - 20usize];
    ["Offset of field: ibv_port_attr::bad_pkey_cntr"]
        [::core::mem::offset_of!(ibv_port_attr, bad_pkey_cntr) - 24usize];
    ["Offset of field: ibv_port_attr::qkey_viol_cntr"]
        [::core::mem::offset_of!(ibv_port_attr, qkey_viol_cntr) - 28usize];
    ["Offset of field: ibv_port_attr::pkey_tbl_len"]
        [::core::mem::offset_of!(ibv_port_attr, pkey_tbl_len) - 32usize];
    ["Offset of field: ibv_port_attr::lid"][::core::mem::offset_of!(ibv_port_attr, lid) - 34usize];
    ["Offset of field: ibv_port_attr::sm_lid"]
        [::core::mem::offset_of!(ibv_port_attr, sm_lid) - 36usize];
    ["Offset of field: ibv_port_attr::lmc"][::core::mem::offset_of!(ibv_port_attr, lmc) - 38usize];
    ["Offset of field: ibv_port_attr::max_vl_num"]
        [::core::mem::offset_of!(ibv_port_attr, max_vl_num) - 39usize];
    ["Offset of field: ibv_port_attr::sm_sl"]
        [::core::mem::offset_of!(ibv_port_attr, sm_sl) - 40usize];
    ["Offset of field: ibv_port_attr::subnet_timeout"]
        [::core::mem::offset_of!(ibv_port_attr, subnet_timeout) - 41usize];
    ["Offset of field: ibv_port_attr::init_type_reply"]
        [::core::mem::offset_of!(ibv_port_attr, init_type_reply) - 42usize];
    ["Offset of field: ibv_port_attr::active_width"]
        [::core::mem::offset_of!(ibv_port_attr, active_width) - 43usize];
    ["Offset of field: ibv_port_attr::active_speed"]
        [::core::mem::offset_of!(ibv_port_attr, active_speed) - 44usize];
    ["Offset of field: ibv_port_attr::phys_state"]
        [::core::mem::offset_of!(ibv_port_attr, phys_state) - 45usize];
    ["Offset of field: ibv_port_attr::link_layer"]
        [::core::mem::offset_of!(ibv_port_attr, link_layer) - 46usize];
    ["Offset of field: ibv_port_attr::flags"]
        [::core::mem::offset_of!(ibv_port_attr, flags) - 47usize];
    ["Offset of field: ibv_port_attr::port_cap_flags2"]
        [::core::mem::offset_of!(ibv_port_attr, port_cap_flags2) - 48usize];
    ["Offset of field: ibv_port_attr::active_speed_ex"]
        [::core::mem::offset_of!(ibv_port_attr, active_speed_ex) - 52usize];
};
impl Default for ibv_port_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_EVENT_CQ_ERR: ibv_event_type = 0;
pub const IBV_EVENT_QP_FATAL: ibv_event_type = 1;
pub const IBV_EVENT_QP_REQ_ERR: ibv_event_type = 2;
pub const IBV_EVENT_QP_ACCESS_ERR: ibv_event_type = 3;
pub const IBV_EVENT_COMM_EST: ibv_event_type = 4;
pub const IBV_EVENT_SQ_DRAINED: ibv_event_type = 5;
pub const IBV_EVENT_PATH_MIG: ibv_event_type = 6;
pub const IBV_EVENT_PATH_MIG_ERR: ibv_event_type = 7;
pub const IBV_EVENT_DEVICE_FATAL: ibv_event_type = 8;
pub const IBV_EVENT_PORT_ACTIVE: ibv_event_type = 9;
pub const IBV_EVENT_PORT_ERR: ibv_event_type = 10;
pub const IBV_EVENT_LID_CHANGE: ibv_event_type = 11;
pub const IBV_EVENT_PKEY_CHANGE: ibv_event_type = 12;
pub const IBV_EVENT_SM_CHANGE: ibv_event_type = 13;
pub const IBV_EVENT_SRQ_ERR: ibv_event_type = 14;
pub const IBV_EVENT_SRQ_LIMIT_REACHED: ibv_event_type = 15;
pub const IBV_EVENT_QP_LAST_WQE_REACHED: ibv_event_type = 16;
pub const IBV_EVENT_CLIENT_REREGISTER: ibv_event_type = 17;
pub const IBV_EVENT_GID_CHANGE: ibv_event_type = 18;
pub const IBV_EVENT_WQ_FATAL: ibv_event_type = 19;
pub const IBV_EVENT_DEVICE_SPEED_CHANGE: ibv_event_type = 20;
pub type ibv_event_type = libc::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_async_event {
    pub element: ibv_async_event__bindgen_ty_1,
    pub event_type: ibv_event_type,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_async_event__bindgen_ty_1 {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut ibv_wq,
    pub port_num: libc::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_async_event__bindgen_ty_1"]
        [::core::mem::size_of::<ibv_async_event__bindgen_ty_1>() - 8usize];
    ["Alignment of ibv_async_event__bindgen_ty_1"]
        [::core::mem::align_of::<ibv_async_event__bindgen_ty_1>() - 8usize];
    ["Offset of field: ibv_async_event__bindgen_ty_1::cq"]
        [::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, cq) - 0usize];
    ["Offset of field: ibv_async_event__bindgen_ty_1::qp"]
        [::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, qp) - 0usize];
    ["Offset of field: ibv_async_event__bindgen_ty_1::srq"]
        [::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, srq) - 0usize];
    ["Offset of field: ibv_async_event__bindgen_ty_1::wq"]
        [::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, wq) - 0usize];
    ["Offset of field: ibv_async_event__bindgen_ty_1::port_num"]
        [::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, port_num) - 0usize];
};
impl Default for ibv_async_event__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_async_event"][::core::mem::size_of::<ibv_async_event>() - 16usize];
    ["Alignment of ibv_async_event"][::core::mem::align_of::<ibv_async_event>() - 8usize];
    ["Offset of field: ibv_async_event::element"]
        [::core::mem::offset_of!(ibv_async_event, element) - 0usize];
    ["Offset of field: ibv_async_event::event_type"]
        [::core::mem::offset_of!(ibv_async_event, event_type) - 8usize];
};
impl Default for ibv_async_event {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_WC_SUCCESS: ibv_wc_status = 0;
pub const IBV_WC_LOC_LEN_ERR: ibv_wc_status = 1;
pub const IBV_WC_LOC_QP_OP_ERR: ibv_wc_status = 2;
pub const IBV_WC_LOC_EEC_OP_ERR: ibv_wc_status = 3;
pub const IBV_WC_LOC_PROT_ERR: ibv_wc_status = 4;
pub const IBV_WC_WR_FLUSH_ERR: ibv_wc_status = 5;
pub const IBV_WC_MW_BIND_ERR: ibv_wc_status = 6;
pub const IBV_WC_BAD_RESP_ERR: ibv_wc_status = 7;
pub const IBV_WC_LOC_ACCESS_ERR: ibv_wc_status = 8;
pub const IBV_WC_REM_INV_REQ_ERR: ibv_wc_status = 9;
pub const IBV_WC_REM_ACCESS_ERR: ibv_wc_status = 10;
pub const IBV_WC_REM_OP_ERR: ibv_wc_status = 11;
pub const IBV_WC_RETRY_EXC_ERR: ibv_wc_status = 12;
pub const IBV_WC_RNR_RETRY_EXC_ERR: ibv_wc_status = 13;
pub const IBV_WC_LOC_RDD_VIOL_ERR: ibv_wc_status = 14;
pub const IBV_WC_REM_INV_RD_REQ_ERR: ibv_wc_status = 15;
pub const IBV_WC_REM_ABORT_ERR: ibv_wc_status = 16;
pub const IBV_WC_INV_EECN_ERR: ibv_wc_status = 17;
pub const IBV_WC_INV_EEC_STATE_ERR: ibv_wc_status = 18;
pub const IBV_WC_FATAL_ERR: ibv_wc_status = 19;
pub const IBV_WC_RESP_TIMEOUT_ERR: ibv_wc_status = 20;
pub const IBV_WC_GENERAL_ERR: ibv_wc_status = 21;
pub const IBV_WC_TM_ERR: ibv_wc_status = 22;
pub const IBV_WC_TM_RNDV_INCOMPLETE: ibv_wc_status = 23;
pub type ibv_wc_status = libc::c_uint;
pub const IBV_WC_SEND: ibv_wc_opcode = 0;
pub const IBV_WC_RDMA_WRITE: ibv_wc_opcode = 1;
pub const IBV_WC_RDMA_READ: ibv_wc_opcode = 2;
pub const IBV_WC_COMP_SWAP: ibv_wc_opcode = 3;
pub const IBV_WC_FETCH_ADD: ibv_wc_opcode = 4;
pub const IBV_WC_BIND_MW: ibv_wc_opcode = 5;
pub const IBV_WC_LOCAL_INV: ibv_wc_opcode = 6;
pub const IBV_WC_TSO: ibv_wc_opcode = 7;
pub const IBV_WC_FLUSH: ibv_wc_opcode = 8;
pub const IBV_WC_ATOMIC_WRITE: ibv_wc_opcode = 9;
pub const IBV_WC_RECV: ibv_wc_opcode = 128;
pub const IBV_WC_RECV_RDMA_WITH_IMM: ibv_wc_opcode = 129;
pub const IBV_WC_TM_ADD: ibv_wc_opcode = 130;
pub const IBV_WC_TM_DEL: ibv_wc_opcode = 131;
pub const IBV_WC_TM_SYNC: ibv_wc_opcode = 132;
pub const IBV_WC_TM_RECV: ibv_wc_opcode = 133;
pub const IBV_WC_TM_NO_TAG: ibv_wc_opcode = 134;
pub const IBV_WC_DRIVER1: ibv_wc_opcode = 135;
pub const IBV_WC_DRIVER2: ibv_wc_opcode = 136;
pub const IBV_WC_DRIVER3: ibv_wc_opcode = 137;
pub type ibv_wc_opcode = libc::c_uint;
pub const IBV_WC_IP_CSUM_OK_SHIFT: _bindgen_ty_14 = 2;
pub type _bindgen_ty_14 = libc::c_uint;
pub const IBV_WC_EX_WITH_BYTE_LEN: ibv_create_cq_wc_flags = 1;
pub const IBV_WC_EX_WITH_IMM: ibv_create_cq_wc_flags = 2;
pub const IBV_WC_EX_WITH_QP_NUM: ibv_create_cq_wc_flags = 4;
pub const IBV_WC_EX_WITH_SRC_QP: ibv_create_cq_wc_flags = 8;
pub const IBV_WC_EX_WITH_SLID: ibv_create_cq_wc_flags = 16;
pub const IBV_WC_EX_WITH_SL: ibv_create_cq_wc_flags = 32;
pub const IBV_WC_EX_WITH_DLID_PATH_BITS: ibv_create_cq_wc_flags = 64;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: ibv_create_cq_wc_flags = 128;
pub const IBV_WC_EX_WITH_CVLAN: ibv_create_cq_wc_flags = 256;
pub const IBV_WC_EX_WITH_FLOW_TAG: ibv_create_cq_wc_flags = 512;
pub const IBV_WC_EX_WITH_TM_INFO: ibv_create_cq_wc_flags = 1024;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: ibv_create_cq_wc_flags = 2048;
pub type ibv_create_cq_wc_flags = libc::c_uint;
pub const IBV_WC_STANDARD_FLAGS: _bindgen_ty_15 = 127;
pub type _bindgen_ty_15 = libc::c_uint;
pub const IBV_CREATE_CQ_SUP_WC_FLAGS: _bindgen_ty_16 = 4095;
pub type _bindgen_ty_16 = libc::c_uint;
pub const IBV_WC_GRH: ibv_wc_flags = 1;
pub const IBV_WC_WITH_IMM: ibv_wc_flags = 2;
pub const IBV_WC_IP_CSUM_OK: ibv_wc_flags = 4;
pub const IBV_WC_WITH_INV: ibv_wc_flags = 8;
pub const IBV_WC_TM_SYNC_REQ: ibv_wc_flags = 16;
pub const IBV_WC_TM_MATCH: ibv_wc_flags = 32;
pub const IBV_WC_TM_DATA_VALID: ibv_wc_flags = 64;
pub type ibv_wc_flags = libc::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: ibv_wc_status,
    pub opcode: ibv_wc_opcode,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub anon1: ibv_wc__bindgen_ty_1,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: libc::c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_wc__bindgen_ty_1 {
    pub imm_data: __be32,
    pub invalidated_rkey: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_wc__bindgen_ty_1"][::core::mem::size_of::<ibv_wc__bindgen_ty_1>() - 4usize];
    ["Alignment of ibv_wc__bindgen_ty_1"][::core::mem::align_of::<ibv_wc__bindgen_ty_1>() - 4usize];
    ["Offset of field: ibv_wc__bindgen_ty_1::imm_data"]
        [::core::mem::offset_of!(ibv_wc__bindgen_ty_1, imm_data) - 0usize];
    ["Offset of field: ibv_wc__bindgen_ty_1::invalidated_rkey"]
        [::core::mem::offset_of!(ibv_wc__bindgen_ty_1, invalidated_rkey) - 0usize];
};
impl Default for ibv_wc__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_wc"][::core::mem::size_of::<ibv_wc>() - 48usize];
    ["Alignment of ibv_wc"][::core::mem::align_of::<ibv_wc>() - 8usize];
    ["Offset of field: ibv_wc::wr_id"][::core::mem::offset_of!(ibv_wc, wr_id) - 0usize];
    ["Offset of field: ibv_wc::status"][::core::mem::offset_of!(ibv_wc, status) - 8usize];
    ["Offset of field: ibv_wc::opcode"][::core::mem::offset_of!(ibv_wc, opcode) - 12usize];
    ["Offset of field: ibv_wc::vendor_err"][::core::mem::offset_of!(ibv_wc, vendor_err) - 16usize];
    ["Offset of field: ibv_wc::byte_len"][::core::mem::offset_of!(ibv_wc, byte_len) - 20usize];
    ["Offset of field: ibv_wc::qp_num"][::core::mem::offset_of!(ibv_wc, qp_num) - 28usize];
    ["Offset of field: ibv_wc::src_qp"][::core::mem::offset_of!(ibv_wc, src_qp) - 32usize];
    ["Offset of field: ibv_wc::wc_flags"][::core::mem::offset_of!(ibv_wc, wc_flags) - 36usize];
    ["Offset of field: ibv_wc::pkey_index"][::core::mem::offset_of!(ibv_wc, pkey_index) - 40usize];
    ["Offset of field: ibv_wc::slid"][::core::mem::offset_of!(ibv_wc, slid) - 42usize];
    ["Offset of field: ibv_wc::sl"][::core::mem::offset_of!(ibv_wc, sl) - 44usize];
    ["Offset of field: ibv_wc::dlid_path_bits"]
        [::core::mem::offset_of!(ibv_wc, dlid_path_bits) - 45usize];
};
impl Default for ibv_wc {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_ACCESS_LOCAL_WRITE: ibv_access_flags = 1;
pub const IBV_ACCESS_REMOTE_WRITE: ibv_access_flags = 2;
pub const IBV_ACCESS_REMOTE_READ: ibv_access_flags = 4;
pub const IBV_ACCESS_REMOTE_ATOMIC: ibv_access_flags = 8;
pub const IBV_ACCESS_MW_BIND: ibv_access_flags = 16;
pub const IBV_ACCESS_ZERO_BASED: ibv_access_flags = 32;
pub const IBV_ACCESS_ON_DEMAND: ibv_access_flags = 64;
pub const IBV_ACCESS_HUGETLB: ibv_access_flags = 128;
pub const IBV_ACCESS_FLUSH_GLOBAL: ibv_access_flags = 256;
pub const IBV_ACCESS_FLUSH_PERSISTENT: ibv_access_flags = 512;
pub const IBV_ACCESS_RELAXED_ORDERING: ibv_access_flags = 1048576;
pub type ibv_access_flags = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: libc::c_uint,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_mw_bind_info"][::core::mem::size_of::<ibv_mw_bind_info>() - 32usize];
    ["Alignment of ibv_mw_bind_info"][::core::mem::align_of::<ibv_mw_bind_info>() - 8usize];
    ["Offset of field: ibv_mw_bind_info::mr"]
        [::core::mem::offset_of!(ibv_mw_bind_info, mr) - 0usize];
    ["Offset of field: ibv_mw_bind_info::addr"]
        [::core::mem::offset_of!(ibv_mw_bind_info, addr) - 8usize];
    ["Offset of field: ibv_mw_bind_info::length"]
        [::core::mem::offset_of!(ibv_mw_bind_info, length) - 16usize];
    ["Offset of field: ibv_mw_bind_info::mw_access_flags"]
        [::core::mem::offset_of!(ibv_mw_bind_info, mw_access_flags) - 24usize];
};
impl Default for ibv_mw_bind_info {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_dmah {
    pub context: *mut ibv_context,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_dmah"][::core::mem::size_of::<ibv_dmah>() - 8usize];
    ["Alignment of ibv_dmah"][::core::mem::align_of::<ibv_dmah>() - 8usize];
    ["Offset of field: ibv_dmah::context"][::core::mem::offset_of!(ibv_dmah, context) - 0usize];
};
impl Default for ibv_dmah {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_buf {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_pd"][::core::mem::size_of::<ibv_pd>() - 16usize];
    ["Alignment of ibv_pd"][::core::mem::align_of::<ibv_pd>() - 8usize];
    ["Offset of field: ibv_pd::context"][::core::mem::offset_of!(ibv_pd, context) - 0usize];
    ["Offset of field: ibv_pd::handle"][::core::mem::offset_of!(ibv_pd, handle) - 8usize];
};
impl Default for ibv_pd {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_td_init_attr"][::core::mem::size_of::<ibv_td_init_attr>() - 4usize];
    ["Alignment of ibv_td_init_attr"][::core::mem::align_of::<ibv_td_init_attr>() - 4usize];
    ["Offset of field: ibv_td_init_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_td_init_attr, comp_mask) - 0usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_td"][::core::mem::size_of::<ibv_td>() - 8usize];
    ["Alignment of ibv_td"][::core::mem::align_of::<ibv_td>() - 8usize];
    ["Offset of field: ibv_td::context"][::core::mem::offset_of!(ibv_td, context) - 0usize];
};
impl Default for ibv_td {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_XRCD_INIT_ATTR_FD: ibv_xrcd_init_attr_mask = 1;
pub const IBV_XRCD_INIT_ATTR_OFLAGS: ibv_xrcd_init_attr_mask = 2;
pub const IBV_XRCD_INIT_ATTR_RESERVED: ibv_xrcd_init_attr_mask = 4;
pub type ibv_xrcd_init_attr_mask = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_xrcd_init_attr {
    pub comp_mask: u32,
    pub fd: libc::c_int,
    pub oflags: libc::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_xrcd_init_attr"][::core::mem::size_of::<ibv_xrcd_init_attr>() - 12usize];
    ["Alignment of ibv_xrcd_init_attr"][::core::mem::align_of::<ibv_xrcd_init_attr>() - 4usize];
    ["Offset of field: ibv_xrcd_init_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_xrcd_init_attr, comp_mask) - 0usize];
    ["Offset of field: ibv_xrcd_init_attr::fd"]
        [::core::mem::offset_of!(ibv_xrcd_init_attr, fd) - 4usize];
    ["Offset of field: ibv_xrcd_init_attr::oflags"]
        [::core::mem::offset_of!(ibv_xrcd_init_attr, oflags) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_xrcd {
    pub context: *mut ibv_context,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_xrcd"][::core::mem::size_of::<ibv_xrcd>() - 8usize];
    ["Alignment of ibv_xrcd"][::core::mem::align_of::<ibv_xrcd>() - 8usize];
    ["Offset of field: ibv_xrcd::context"][::core::mem::offset_of!(ibv_xrcd, context) - 0usize];
};
impl Default for ibv_xrcd {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_REREG_MR_CHANGE_TRANSLATION: ibv_rereg_mr_flags = 1;
pub const IBV_REREG_MR_CHANGE_PD: ibv_rereg_mr_flags = 2;
pub const IBV_REREG_MR_CHANGE_ACCESS: ibv_rereg_mr_flags = 4;
pub const IBV_REREG_MR_FLAGS_SUPPORTED: ibv_rereg_mr_flags = 7;
pub type ibv_rereg_mr_flags = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut libc::c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_mr"][::core::mem::size_of::<ibv_mr>() - 48usize];
    ["Alignment of ibv_mr"][::core::mem::align_of::<ibv_mr>() - 8usize];
    ["Offset of field: ibv_mr::context"][::core::mem::offset_of!(ibv_mr, context) - 0usize];
    ["Offset of field: ibv_mr::pd"][::core::mem::offset_of!(ibv_mr, pd) - 8usize];
    ["Offset of field: ibv_mr::addr"][::core::mem::offset_of!(ibv_mr, addr) - 16usize];
    ["Offset of field: ibv_mr::length"][::core::mem::offset_of!(ibv_mr, length) - 24usize];
    ["Offset of field: ibv_mr::handle"][::core::mem::offset_of!(ibv_mr, handle) - 32usize];
    ["Offset of field: ibv_mr::lkey"][::core::mem::offset_of!(ibv_mr, lkey) - 36usize];
    ["Offset of field: ibv_mr::rkey"][::core::mem::offset_of!(ibv_mr, rkey) - 40usize];
};
impl Default for ibv_mr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_REG_MR_MASK_IOVA: ibv_mr_init_attr_mask = 1;
pub const IBV_REG_MR_MASK_ADDR: ibv_mr_init_attr_mask = 2;
pub const IBV_REG_MR_MASK_FD: ibv_mr_init_attr_mask = 4;
pub const IBV_REG_MR_MASK_FD_OFFSET: ibv_mr_init_attr_mask = 8;
pub const IBV_REG_MR_MASK_DMAH: ibv_mr_init_attr_mask = 16;
pub const IBV_REG_MR_MASK_BUF: ibv_mr_init_attr_mask = 32;
pub type ibv_mr_init_attr_mask = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mr_init_attr {
    pub length: usize,
    pub access: libc::c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut libc::c_void,
    pub fd: libc::c_int,
    pub fd_offset: u64,
    pub dmah: *mut ibv_dmah,
    pub buf: *mut ibv_buf,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_mr_init_attr"][::core::mem::size_of::<ibv_mr_init_attr>() - 72usize];
    ["Alignment of ibv_mr_init_attr"][::core::mem::align_of::<ibv_mr_init_attr>() - 8usize];
    ["Offset of field: ibv_mr_init_attr::length"]
        [::core::mem::offset_of!(ibv_mr_init_attr, length) - 0usize];
    ["Offset of field: ibv_mr_init_attr::access"]
        [::core::mem::offset_of!(ibv_mr_init_attr, access) - 8usize];
    ["Offset of field: ibv_mr_init_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_mr_init_attr, comp_mask) - 16usize];
    ["Offset of field: ibv_mr_init_attr::iova"]
        [::core::mem::offset_of!(ibv_mr_init_attr, iova) - 24usize];
    ["Offset of field: ibv_mr_init_attr::addr"]
        [::core::mem::offset_of!(ibv_mr_init_attr, addr) - 32usize];
    ["Offset of field: ibv_mr_init_attr::fd"]
        [::core::mem::offset_of!(ibv_mr_init_attr, fd) - 40usize];
    ["Offset of field: ibv_mr_init_attr::fd_offset"]
        [::core::mem::offset_of!(ibv_mr_init_attr, fd_offset) - 48usize];
    ["Offset of field: ibv_mr_init_attr::dmah"]
        [::core::mem::offset_of!(ibv_mr_init_attr, dmah) - 56usize];
    ["Offset of field: ibv_mr_init_attr::buf"]
        [::core::mem::offset_of!(ibv_mr_init_attr, buf) - 64usize];
};
impl Default for ibv_mr_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_MW_TYPE_1: ibv_mw_type = 1;
pub const IBV_MW_TYPE_2: ibv_mw_type = 2;
pub type ibv_mw_type = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub type_: ibv_mw_type,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_mw"][::core::mem::size_of::<ibv_mw>() - 32usize];
    ["Alignment of ibv_mw"][::core::mem::align_of::<ibv_mw>() - 8usize];
    ["Offset of field: ibv_mw::context"][::core::mem::offset_of!(ibv_mw, context) - 0usize];
    ["Offset of field: ibv_mw::pd"][::core::mem::offset_of!(ibv_mw, pd) - 8usize];
    ["Offset of field: ibv_mw::rkey"][::core::mem::offset_of!(ibv_mw, rkey) - 16usize];
    ["Offset of field: ibv_mw::handle"][::core::mem::offset_of!(ibv_mw, handle) - 20usize];
    ["Offset of field: ibv_mw::type_"][::core::mem::offset_of!(ibv_mw, type_) - 24usize];
};
impl Default for ibv_mw {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_global_route"][::core::mem::size_of::<ibv_global_route>() - 24usize];
    ["Alignment of ibv_global_route"][::core::mem::align_of::<ibv_global_route>() - 8usize];
    ["Offset of field: ibv_global_route::dgid"]
        [::core::mem::offset_of!(ibv_global_route, dgid) - 0usize];
    ["Offset of field: ibv_global_route::flow_label"]
        [::core::mem::offset_of!(ibv_global_route, flow_label) - 16usize];
    ["Offset of field: ibv_global_route::sgid_index"]
        [::core::mem::offset_of!(ibv_global_route, sgid_index) - 20usize];
    ["Offset of field: ibv_global_route::hop_limit"]
        [::core::mem::offset_of!(ibv_global_route, hop_limit) - 21usize];
    ["Offset of field: ibv_global_route::traffic_class"]
        [::core::mem::offset_of!(ibv_global_route, traffic_class) - 22usize];
};
impl Default for ibv_global_route {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_grh {
    pub version_tclass_flow: __be32,
    pub paylen: __be16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_grh"][::core::mem::size_of::<ibv_grh>() - 40usize];
    ["Alignment of ibv_grh"][::core::mem::align_of::<ibv_grh>() - 8usize];
    ["Offset of field: ibv_grh::version_tclass_flow"]
        [::core::mem::offset_of!(ibv_grh, version_tclass_flow) - 0usize];
    ["Offset of field: ibv_grh::paylen"][::core::mem::offset_of!(ibv_grh, paylen) - 4usize];
    ["Offset of field: ibv_grh::next_hdr"][::core::mem::offset_of!(ibv_grh, next_hdr) - 6usize];
    ["Offset of field: ibv_grh::hop_limit"][::core::mem::offset_of!(ibv_grh, hop_limit) - 7usize];
    ["Offset of field: ibv_grh::sgid"][::core::mem::offset_of!(ibv_grh, sgid) - 8usize];
    ["Offset of field: ibv_grh::dgid"][::core::mem::offset_of!(ibv_grh, dgid) - 24usize];
};
impl Default for ibv_grh {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_RATE_MAX: ibv_rate = 0;
pub const IBV_RATE_2_5_GBPS: ibv_rate = 2;
pub const IBV_RATE_5_GBPS: ibv_rate = 5;
pub const IBV_RATE_10_GBPS: ibv_rate = 3;
pub const IBV_RATE_20_GBPS: ibv_rate = 6;
pub const IBV_RATE_30_GBPS: ibv_rate = 4;
pub const IBV_RATE_40_GBPS: ibv_rate = 7;
pub const IBV_RATE_60_GBPS: ibv_rate = 8;
pub const IBV_RATE_80_GBPS: ibv_rate = 9;
pub const IBV_RATE_120_GBPS: ibv_rate = 10;
pub const IBV_RATE_14_GBPS: ibv_rate = 11;
pub const IBV_RATE_56_GBPS: ibv_rate = 12;
pub const IBV_RATE_112_GBPS: ibv_rate = 13;
pub const IBV_RATE_168_GBPS: ibv_rate = 14;
pub const IBV_RATE_25_GBPS: ibv_rate = 15;
pub const IBV_RATE_100_GBPS: ibv_rate = 16;
pub const IBV_RATE_200_GBPS: ibv_rate = 17;
pub const IBV_RATE_300_GBPS: ibv_rate = 18;
pub const IBV_RATE_28_GBPS: ibv_rate = 19;
pub const IBV_RATE_50_GBPS: ibv_rate = 20;
pub const IBV_RATE_400_GBPS: ibv_rate = 21;
pub const IBV_RATE_600_GBPS: ibv_rate = 22;
pub const IBV_RATE_800_GBPS: ibv_rate = 23;
pub const IBV_RATE_1200_GBPS: ibv_rate = 24;
pub type ibv_rate = libc::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_ah_attr"][::core::mem::size_of::<ibv_ah_attr>() - 32usize];
    ["Alignment of ibv_ah_attr"][::core::mem::align_of::<ibv_ah_attr>() - 8usize];
    ["Offset of field: ibv_ah_attr::grh"][::core::mem::offset_of!(ibv_ah_attr, grh) - 0usize];
    ["Offset of field: ibv_ah_attr::dlid"][::core::mem::offset_of!(ibv_ah_attr, dlid) - 24usize];
    ["Offset of field: ibv_ah_attr::sl"][::core::mem::offset_of!(ibv_ah_attr, sl) - 26usize];
    ["Offset of field: ibv_ah_attr::src_path_bits"]
        [::core::mem::offset_of!(ibv_ah_attr, src_path_bits) - 27usize];
    ["Offset of field: ibv_ah_attr::static_rate"]
        [::core::mem::offset_of!(ibv_ah_attr, static_rate) - 28usize];
    ["Offset of field: ibv_ah_attr::is_global"]
        [::core::mem::offset_of!(ibv_ah_attr, is_global) - 29usize];
    ["Offset of field: ibv_ah_attr::port_num"]
        [::core::mem::offset_of!(ibv_ah_attr, port_num) - 30usize];
};
impl Default for ibv_ah_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_SRQ_MAX_WR: ibv_srq_attr_mask = 1;
pub const IBV_SRQ_LIMIT: ibv_srq_attr_mask = 2;
pub type ibv_srq_attr_mask = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_srq_attr"][::core::mem::size_of::<ibv_srq_attr>() - 12usize];
    ["Alignment of ibv_srq_attr"][::core::mem::align_of::<ibv_srq_attr>() - 4usize];
    ["Offset of field: ibv_srq_attr::max_wr"]
        [::core::mem::offset_of!(ibv_srq_attr, max_wr) - 0usize];
    ["Offset of field: ibv_srq_attr::max_sge"]
        [::core::mem::offset_of!(ibv_srq_attr, max_sge) - 4usize];
    ["Offset of field: ibv_srq_attr::srq_limit"]
        [::core::mem::offset_of!(ibv_srq_attr, srq_limit) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut libc::c_void,
    pub attr: ibv_srq_attr,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_srq_init_attr"][::core::mem::size_of::<ibv_srq_init_attr>() - 24usize];
    ["Alignment of ibv_srq_init_attr"][::core::mem::align_of::<ibv_srq_init_attr>() - 8usize];
    ["Offset of field: ibv_srq_init_attr::srq_context"]
        [::core::mem::offset_of!(ibv_srq_init_attr, srq_context) - 0usize];
    ["Offset of field: ibv_srq_init_attr::attr"]
        [::core::mem::offset_of!(ibv_srq_init_attr, attr) - 8usize];
};
impl Default for ibv_srq_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_SRQT_BASIC: ibv_srq_type = 0;
pub const IBV_SRQT_XRC: ibv_srq_type = 1;
pub const IBV_SRQT_TM: ibv_srq_type = 2;
pub type ibv_srq_type = libc::c_uint;
pub const IBV_SRQ_INIT_ATTR_TYPE: ibv_srq_init_attr_mask = 1;
pub const IBV_SRQ_INIT_ATTR_PD: ibv_srq_init_attr_mask = 2;
pub const IBV_SRQ_INIT_ATTR_XRCD: ibv_srq_init_attr_mask = 4;
pub const IBV_SRQ_INIT_ATTR_CQ: ibv_srq_init_attr_mask = 8;
pub const IBV_SRQ_INIT_ATTR_TM: ibv_srq_init_attr_mask = 16;
pub const IBV_SRQ_INIT_ATTR_RESERVED: ibv_srq_init_attr_mask = 32;
pub type ibv_srq_init_attr_mask = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_tm_cap {
    pub max_num_tags: u32,
    pub max_ops: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_tm_cap"][::core::mem::size_of::<ibv_tm_cap>() - 8usize];
    ["Alignment of ibv_tm_cap"][::core::mem::align_of::<ibv_tm_cap>() - 4usize];
    ["Offset of field: ibv_tm_cap::max_num_tags"]
        [::core::mem::offset_of!(ibv_tm_cap, max_num_tags) - 0usize];
    ["Offset of field: ibv_tm_cap::max_ops"][::core::mem::offset_of!(ibv_tm_cap, max_ops) - 4usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_srq_init_attr_ex {
    pub srq_context: *mut libc::c_void,
    pub attr: ibv_srq_attr,
    pub comp_mask: u32,
    pub srq_type: ibv_srq_type,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub cq: *mut ibv_cq,
    pub tm_cap: ibv_tm_cap,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_srq_init_attr_ex"][::core::mem::size_of::<ibv_srq_init_attr_ex>() - 64usize];
    ["Alignment of ibv_srq_init_attr_ex"][::core::mem::align_of::<ibv_srq_init_attr_ex>() - 8usize];
    ["Offset of field: ibv_srq_init_attr_ex::srq_context"]
        [::core::mem::offset_of!(ibv_srq_init_attr_ex, srq_context) - 0usize];
    ["Offset of field: ibv_srq_init_attr_ex::attr"]
        [::core::mem::offset_of!(ibv_srq_init_attr_ex, attr) - 8usize];
    ["Offset of field: ibv_srq_init_attr_ex::comp_mask"]
        [::core::mem::offset_of!(ibv_srq_init_attr_ex, comp_mask) - 20usize];
    ["Offset of field: ibv_srq_init_attr_ex::srq_type"]
        [::core::mem::offset_of!(ibv_srq_init_attr_ex, srq_type) - 24usize];
    ["Offset of field: ibv_srq_init_attr_ex::pd"]
        [::core::mem::offset_of!(ibv_srq_init_attr_ex, pd) - 32usize];
    ["Offset of field: ibv_srq_init_attr_ex::xrcd"]
        [::core::mem::offset_of!(ibv_srq_init_attr_ex, xrcd) - 40usize];
    ["Offset of field: ibv_srq_init_attr_ex::cq"]
        [::core::mem::offset_of!(ibv_srq_init_attr_ex, cq) - 48usize];
    ["Offset of field: ibv_srq_init_attr_ex::tm_cap"]
        [::core::mem::offset_of!(ibv_srq_init_attr_ex, tm_cap) - 56usize];
};
impl Default for ibv_srq_init_attr_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_WQT_RQ: ibv_wq_type = 0;
pub type ibv_wq_type = libc::c_uint;
pub const IBV_WQ_INIT_ATTR_FLAGS: ibv_wq_init_attr_mask = 1;
pub const IBV_WQ_INIT_ATTR_RESERVED: ibv_wq_init_attr_mask = 2;
pub type ibv_wq_init_attr_mask = libc::c_uint;
pub const IBV_WQ_FLAGS_CVLAN_STRIPPING: ibv_wq_flags = 1;
pub const IBV_WQ_FLAGS_SCATTER_FCS: ibv_wq_flags = 2;
pub const IBV_WQ_FLAGS_DELAY_DROP: ibv_wq_flags = 4;
pub const IBV_WQ_FLAGS_PCI_WRITE_END_PADDING: ibv_wq_flags = 8;
pub const IBV_WQ_FLAGS_RESERVED: ibv_wq_flags = 16;
pub type ibv_wq_flags = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_wq_init_attr {
    pub wq_context: *mut libc::c_void,
    pub wq_type: ibv_wq_type,
    pub max_wr: u32,
    pub max_sge: u32,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub comp_mask: u32,
    pub create_flags: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_wq_init_attr"][::core::mem::size_of::<ibv_wq_init_attr>() - 48usize];
    ["Alignment of ibv_wq_init_attr"][::core::mem::align_of::<ibv_wq_init_attr>() - 8usize];
    ["Offset of field: ibv_wq_init_attr::wq_context"]
        [::core::mem::offset_of!(ibv_wq_init_attr, wq_context) - 0usize];
    ["Offset of field: ibv_wq_init_attr::wq_type"]
        [::core::mem::offset_of!(ibv_wq_init_attr, wq_type) - 8usize];
    ["Offset of field: ibv_wq_init_attr::max_wr"]
        [::core::mem::offset_of!(ibv_wq_init_attr, max_wr) - 12usize];
    ["Offset of field: ibv_wq_init_attr::max_sge"]
        [::core::mem::offset_of!(ibv_wq_init_attr, max_sge) - 16usize];
    ["Offset of field: ibv_wq_init_attr::pd"]
        [::core::mem::offset_of!(ibv_wq_init_attr, pd) - 24usize];
    ["Offset of field: ibv_wq_init_attr::cq"]
        [::core::mem::offset_of!(ibv_wq_init_attr, cq) - 32usize];
    ["Offset of field: ibv_wq_init_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_wq_init_attr, comp_mask) - 40usize];
    ["Offset of field: ibv_wq_init_attr::create_flags"]
        [::core::mem::offset_of!(ibv_wq_init_attr, create_flags) - 44usize];
};
impl Default for ibv_wq_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_WQS_RESET: ibv_wq_state = 0;
pub const IBV_WQS_RDY: ibv_wq_state = 1;
pub const IBV_WQS_ERR: ibv_wq_state = 2;
pub const IBV_WQS_UNKNOWN: ibv_wq_state = 3;
pub type ibv_wq_state = libc::c_uint;
pub const IBV_WQ_ATTR_STATE: ibv_wq_attr_mask = 1;
pub const IBV_WQ_ATTR_CURR_STATE: ibv_wq_attr_mask = 2;
pub const IBV_WQ_ATTR_FLAGS: ibv_wq_attr_mask = 4;
pub const IBV_WQ_ATTR_RESERVED: ibv_wq_attr_mask = 8;
pub type ibv_wq_attr_mask = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_wq_attr {
    pub attr_mask: u32,
    pub wq_state: ibv_wq_state,
    pub curr_wq_state: ibv_wq_state,
    pub flags: u32,
    pub flags_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_wq_attr"][::core::mem::size_of::<ibv_wq_attr>() - 20usize];
    ["Alignment of ibv_wq_attr"][::core::mem::align_of::<ibv_wq_attr>() - 4usize];
    ["Offset of field: ibv_wq_attr::attr_mask"]
        [::core::mem::offset_of!(ibv_wq_attr, attr_mask) - 0usize];
    ["Offset of field: ibv_wq_attr::wq_state"]
        [::core::mem::offset_of!(ibv_wq_attr, wq_state) - 4usize];
    ["Offset of field: ibv_wq_attr::curr_wq_state"]
        [::core::mem::offset_of!(ibv_wq_attr, curr_wq_state) - 8usize];
    ["Offset of field: ibv_wq_attr::flags"][::core::mem::offset_of!(ibv_wq_attr, flags) - 12usize];
    ["Offset of field: ibv_wq_attr::flags_mask"]
        [::core::mem::offset_of!(ibv_wq_attr, flags_mask) - 16usize];
};
impl Default for ibv_wq_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_rwq_ind_table {
    pub context: *mut ibv_context,
    pub ind_tbl_handle: libc::c_int,
    pub ind_tbl_num: libc::c_int,
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_rwq_ind_table"][::core::mem::size_of::<ibv_rwq_ind_table>() - 24usize];
    ["Alignment of ibv_rwq_ind_table"][::core::mem::align_of::<ibv_rwq_ind_table>() - 8usize];
    ["Offset of field: ibv_rwq_ind_table::context"]
        [::core::mem::offset_of!(ibv_rwq_ind_table, context) - 0usize];
    ["Offset of field: ibv_rwq_ind_table::ind_tbl_handle"]
        [::core::mem::offset_of!(ibv_rwq_ind_table, ind_tbl_handle) - 8usize];
    ["Offset of field: ibv_rwq_ind_table::ind_tbl_num"]
        [::core::mem::offset_of!(ibv_rwq_ind_table, ind_tbl_num) - 12usize];
    ["Offset of field: ibv_rwq_ind_table::comp_mask"]
        [::core::mem::offset_of!(ibv_rwq_ind_table, comp_mask) - 16usize];
};
impl Default for ibv_rwq_ind_table {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_CREATE_IND_TABLE_RESERVED: ibv_ind_table_init_attr_mask = 1;
pub type ibv_ind_table_init_attr_mask = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_rwq_ind_table_init_attr {
    pub log_ind_tbl_size: u32,
    pub ind_tbl: *mut *mut ibv_wq,
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_rwq_ind_table_init_attr"]
        [::core::mem::size_of::<ibv_rwq_ind_table_init_attr>() - 24usize];
    ["Alignment of ibv_rwq_ind_table_init_attr"]
        [::core::mem::align_of::<ibv_rwq_ind_table_init_attr>() - 8usize];
    ["Offset of field: ibv_rwq_ind_table_init_attr::log_ind_tbl_size"]
        [::core::mem::offset_of!(ibv_rwq_ind_table_init_attr, log_ind_tbl_size) - 0usize];
    ["Offset of field: ibv_rwq_ind_table_init_attr::ind_tbl"]
        [::core::mem::offset_of!(ibv_rwq_ind_table_init_attr, ind_tbl) - 8usize];
    ["Offset of field: ibv_rwq_ind_table_init_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_rwq_ind_table_init_attr, comp_mask) - 16usize];
};
impl Default for ibv_rwq_ind_table_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_QPT_RC: ibv_qp_type = 2;
pub const IBV_QPT_UC: ibv_qp_type = 3;
pub const IBV_QPT_UD: ibv_qp_type = 4;
pub const IBV_QPT_RAW_PACKET: ibv_qp_type = 8;
pub const IBV_QPT_XRC_SEND: ibv_qp_type = 9;
pub const IBV_QPT_XRC_RECV: ibv_qp_type = 10;
pub const IBV_QPT_DRIVER: ibv_qp_type = 255;
pub type ibv_qp_type = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_cap"][::core::mem::size_of::<ibv_qp_cap>() - 20usize];
    ["Alignment of ibv_qp_cap"][::core::mem::align_of::<ibv_qp_cap>() - 4usize];
    ["Offset of field: ibv_qp_cap::max_send_wr"]
        [::core::mem::offset_of!(ibv_qp_cap, max_send_wr) - 0usize];
    ["Offset of field: ibv_qp_cap::max_recv_wr"]
        [::core::mem::offset_of!(ibv_qp_cap, max_recv_wr) - 4usize];
    ["Offset of field: ibv_qp_cap::max_send_sge"]
        [::core::mem::offset_of!(ibv_qp_cap, max_send_sge) - 8usize];
    ["Offset of field: ibv_qp_cap::max_recv_sge"]
        [::core::mem::offset_of!(ibv_qp_cap, max_recv_sge) - 12usize];
    ["Offset of field: ibv_qp_cap::max_inline_data"]
        [::core::mem::offset_of!(ibv_qp_cap, max_inline_data) - 16usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut libc::c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: libc::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_init_attr"][::core::mem::size_of::<ibv_qp_init_attr>() - 64usize];
    ["Alignment of ibv_qp_init_attr"][::core::mem::align_of::<ibv_qp_init_attr>() - 8usize];
    ["Offset of field: ibv_qp_init_attr::qp_context"]
        [::core::mem::offset_of!(ibv_qp_init_attr, qp_context) - 0usize];
    ["Offset of field: ibv_qp_init_attr::send_cq"]
        [::core::mem::offset_of!(ibv_qp_init_attr, send_cq) - 8usize];
    ["Offset of field: ibv_qp_init_attr::recv_cq"]
        [::core::mem::offset_of!(ibv_qp_init_attr, recv_cq) - 16usize];
    ["Offset of field: ibv_qp_init_attr::srq"]
        [::core::mem::offset_of!(ibv_qp_init_attr, srq) - 24usize];
    ["Offset of field: ibv_qp_init_attr::cap"]
        [::core::mem::offset_of!(ibv_qp_init_attr, cap) - 32usize];
    ["Offset of field: ibv_qp_init_attr::qp_type"]
        [::core::mem::offset_of!(ibv_qp_init_attr, qp_type) - 52usize];
    ["Offset of field: ibv_qp_init_attr::sq_sig_all"]
        [::core::mem::offset_of!(ibv_qp_init_attr, sq_sig_all) - 56usize];
};
impl Default for ibv_qp_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_QP_INIT_ATTR_PD: ibv_qp_init_attr_mask = 1;
pub const IBV_QP_INIT_ATTR_XRCD: ibv_qp_init_attr_mask = 2;
pub const IBV_QP_INIT_ATTR_CREATE_FLAGS: ibv_qp_init_attr_mask = 4;
pub const IBV_QP_INIT_ATTR_MAX_TSO_HEADER: ibv_qp_init_attr_mask = 8;
pub const IBV_QP_INIT_ATTR_IND_TABLE: ibv_qp_init_attr_mask = 16;
pub const IBV_QP_INIT_ATTR_RX_HASH: ibv_qp_init_attr_mask = 32;
pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: ibv_qp_init_attr_mask = 64;
pub type ibv_qp_init_attr_mask = libc::c_uint;
pub const IBV_QP_CREATE_BLOCK_SELF_MCAST_LB: ibv_qp_create_flags = 2;
pub const IBV_QP_CREATE_SCATTER_FCS: ibv_qp_create_flags = 256;
pub const IBV_QP_CREATE_CVLAN_STRIPPING: ibv_qp_create_flags = 512;
pub const IBV_QP_CREATE_SOURCE_QPN: ibv_qp_create_flags = 1024;
pub const IBV_QP_CREATE_PCI_WRITE_END_PADDING: ibv_qp_create_flags = 2048;
pub type ibv_qp_create_flags = libc::c_uint;
pub const IBV_QP_EX_WITH_RDMA_WRITE: ibv_qp_create_send_ops_flags = 1;
pub const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: ibv_qp_create_send_ops_flags = 2;
pub const IBV_QP_EX_WITH_SEND: ibv_qp_create_send_ops_flags = 4;
pub const IBV_QP_EX_WITH_SEND_WITH_IMM: ibv_qp_create_send_ops_flags = 8;
pub const IBV_QP_EX_WITH_RDMA_READ: ibv_qp_create_send_ops_flags = 16;
pub const IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: ibv_qp_create_send_ops_flags = 32;
pub const IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: ibv_qp_create_send_ops_flags = 64;
pub const IBV_QP_EX_WITH_LOCAL_INV: ibv_qp_create_send_ops_flags = 128;
pub const IBV_QP_EX_WITH_BIND_MW: ibv_qp_create_send_ops_flags = 256;
pub const IBV_QP_EX_WITH_SEND_WITH_INV: ibv_qp_create_send_ops_flags = 512;
pub const IBV_QP_EX_WITH_TSO: ibv_qp_create_send_ops_flags = 1024;
pub const IBV_QP_EX_WITH_FLUSH: ibv_qp_create_send_ops_flags = 2048;
pub const IBV_QP_EX_WITH_ATOMIC_WRITE: ibv_qp_create_send_ops_flags = 4096;
pub type ibv_qp_create_send_ops_flags = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_rx_hash_conf {
    pub rx_hash_function: u8,
    pub rx_hash_key_len: u8,
    pub rx_hash_key: *mut u8,
    pub rx_hash_fields_mask: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_rx_hash_conf"][::core::mem::size_of::<ibv_rx_hash_conf>() - 24usize];
    ["Alignment of ibv_rx_hash_conf"][::core::mem::align_of::<ibv_rx_hash_conf>() - 8usize];
    ["Offset of field: ibv_rx_hash_conf::rx_hash_function"]
        [::core::mem::offset_of!(ibv_rx_hash_conf, rx_hash_function) - 0usize];
    ["Offset of field: ibv_rx_hash_conf::rx_hash_key_len"]
        [::core::mem::offset_of!(ibv_rx_hash_conf, rx_hash_key_len) - 1usize];
    ["Offset of field: ibv_rx_hash_conf::rx_hash_key"]
        [::core::mem::offset_of!(ibv_rx_hash_conf, rx_hash_key) - 8usize];
    ["Offset of field: ibv_rx_hash_conf::rx_hash_fields_mask"]
        [::core::mem::offset_of!(ibv_rx_hash_conf, rx_hash_fields_mask) - 16usize];
};
impl Default for ibv_rx_hash_conf {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_qp_init_attr_ex {
    pub qp_context: *mut libc::c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: libc::c_int,
    pub comp_mask: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut ibv_rwq_ind_table,
    pub rx_hash_conf: ibv_rx_hash_conf,
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_init_attr_ex"][::core::mem::size_of::<ibv_qp_init_attr_ex>() - 136usize];
    ["Alignment of ibv_qp_init_attr_ex"][::core::mem::align_of::<ibv_qp_init_attr_ex>() - 8usize];
    ["Offset of field: ibv_qp_init_attr_ex::qp_context"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, qp_context) - 0usize];
    ["Offset of field: ibv_qp_init_attr_ex::send_cq"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, send_cq) - 8usize];
    ["Offset of field: ibv_qp_init_attr_ex::recv_cq"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, recv_cq) - 16usize];
    ["Offset of field: ibv_qp_init_attr_ex::srq"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, srq) - 24usize];
    ["Offset of field: ibv_qp_init_attr_ex::cap"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, cap) - 32usize];
    ["Offset of field: ibv_qp_init_attr_ex::qp_type"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, qp_type) - 52usize];
    ["Offset of field: ibv_qp_init_attr_ex::sq_sig_all"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, sq_sig_all) - 56usize];
    ["Offset of field: ibv_qp_init_attr_ex::comp_mask"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, comp_mask) - 60usize];
    ["Offset of field: ibv_qp_init_attr_ex::pd"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, pd) - 64usize];
    ["Offset of field: ibv_qp_init_attr_ex::xrcd"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, xrcd) - 72usize];
    ["Offset of field: ibv_qp_init_attr_ex::create_flags"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, create_flags) - 80usize];
    ["Offset of field: ibv_qp_init_attr_ex::max_tso_header"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, max_tso_header) - 84usize];
    ["Offset of field: ibv_qp_init_attr_ex::rwq_ind_tbl"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, rwq_ind_tbl) - 88usize];
    ["Offset of field: ibv_qp_init_attr_ex::rx_hash_conf"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, rx_hash_conf) - 96usize];
    ["Offset of field: ibv_qp_init_attr_ex::source_qpn"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, source_qpn) - 120usize];
    ["Offset of field: ibv_qp_init_attr_ex::send_ops_flags"]
        [::core::mem::offset_of!(ibv_qp_init_attr_ex, send_ops_flags) - 128usize];
};
impl Default for ibv_qp_init_attr_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_QP_OPEN_ATTR_NUM: ibv_qp_open_attr_mask = 1;
pub const IBV_QP_OPEN_ATTR_XRCD: ibv_qp_open_attr_mask = 2;
pub const IBV_QP_OPEN_ATTR_CONTEXT: ibv_qp_open_attr_mask = 4;
pub const IBV_QP_OPEN_ATTR_TYPE: ibv_qp_open_attr_mask = 8;
pub const IBV_QP_OPEN_ATTR_RESERVED: ibv_qp_open_attr_mask = 16;
pub type ibv_qp_open_attr_mask = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_qp_open_attr {
    pub comp_mask: u32,
    pub qp_num: u32,
    pub xrcd: *mut ibv_xrcd,
    pub qp_context: *mut libc::c_void,
    pub qp_type: ibv_qp_type,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_open_attr"][::core::mem::size_of::<ibv_qp_open_attr>() - 32usize];
    ["Alignment of ibv_qp_open_attr"][::core::mem::align_of::<ibv_qp_open_attr>() - 8usize];
    ["Offset of field: ibv_qp_open_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_qp_open_attr, comp_mask) - 0usize];
    ["Offset of field: ibv_qp_open_attr::qp_num"]
        [::core::mem::offset_of!(ibv_qp_open_attr, qp_num) - 4usize];
    ["Offset of field: ibv_qp_open_attr::xrcd"]
        [::core::mem::offset_of!(ibv_qp_open_attr, xrcd) - 8usize];
    ["Offset of field: ibv_qp_open_attr::qp_context"]
        [::core::mem::offset_of!(ibv_qp_open_attr, qp_context) - 16usize];
    ["Offset of field: ibv_qp_open_attr::qp_type"]
        [::core::mem::offset_of!(ibv_qp_open_attr, qp_type) - 24usize];
};
impl Default for ibv_qp_open_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_QP_STATE: ibv_qp_attr_mask = 1;
pub const IBV_QP_CUR_STATE: ibv_qp_attr_mask = 2;
pub const IBV_QP_EN_SQD_ASYNC_NOTIFY: ibv_qp_attr_mask = 4;
pub const IBV_QP_ACCESS_FLAGS: ibv_qp_attr_mask = 8;
pub const IBV_QP_PKEY_INDEX: ibv_qp_attr_mask = 16;
pub const IBV_QP_PORT: ibv_qp_attr_mask = 32;
pub const IBV_QP_QKEY: ibv_qp_attr_mask = 64;
pub const IBV_QP_AV: ibv_qp_attr_mask = 128;
pub const IBV_QP_PATH_MTU: ibv_qp_attr_mask = 256;
pub const IBV_QP_TIMEOUT: ibv_qp_attr_mask = 512;
pub const IBV_QP_RETRY_CNT: ibv_qp_attr_mask = 1024;
pub const IBV_QP_RNR_RETRY: ibv_qp_attr_mask = 2048;
pub const IBV_QP_RQ_PSN: ibv_qp_attr_mask = 4096;
pub const IBV_QP_MAX_QP_RD_ATOMIC: ibv_qp_attr_mask = 8192;
pub const IBV_QP_ALT_PATH: ibv_qp_attr_mask = 16384;
pub const IBV_QP_MIN_RNR_TIMER: ibv_qp_attr_mask = 32768;
pub const IBV_QP_SQ_PSN: ibv_qp_attr_mask = 65536;
pub const IBV_QP_MAX_DEST_RD_ATOMIC: ibv_qp_attr_mask = 131072;
pub const IBV_QP_PATH_MIG_STATE: ibv_qp_attr_mask = 262144;
pub const IBV_QP_CAP: ibv_qp_attr_mask = 524288;
pub const IBV_QP_DEST_QPN: ibv_qp_attr_mask = 1048576;
pub const IBV_QP_RATE_LIMIT: ibv_qp_attr_mask = 33554432;
pub type ibv_qp_attr_mask = libc::c_uint;
pub const IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS: ibv_query_qp_data_in_order_flags = 1;
pub const IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY: ibv_query_qp_data_in_order_flags = 2;
pub type ibv_query_qp_data_in_order_flags = libc::c_uint;
pub const IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG: ibv_query_qp_data_in_order_caps = 1;
pub const IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES: ibv_query_qp_data_in_order_caps = 2;
pub type ibv_query_qp_data_in_order_caps = libc::c_uint;
pub const IBV_QPS_RESET: ibv_qp_state = 0;
pub const IBV_QPS_INIT: ibv_qp_state = 1;
pub const IBV_QPS_RTR: ibv_qp_state = 2;
pub const IBV_QPS_RTS: ibv_qp_state = 3;
pub const IBV_QPS_SQD: ibv_qp_state = 4;
pub const IBV_QPS_SQE: ibv_qp_state = 5;
pub const IBV_QPS_ERR: ibv_qp_state = 6;
pub const IBV_QPS_UNKNOWN: ibv_qp_state = 7;
pub type ibv_qp_state = libc::c_uint;
pub const IBV_MIG_MIGRATED: ibv_mig_state = 0;
pub const IBV_MIG_REARM: ibv_mig_state = 1;
pub const IBV_MIG_ARMED: ibv_mig_state = 2;
pub type ibv_mig_state = libc::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_qp_attr {
    pub qp_state: ibv_qp_state,
    pub cur_qp_state: ibv_qp_state,
    pub path_mtu: ibv_mtu,
    pub path_mig_state: ibv_mig_state,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: libc::c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_attr"][::core::mem::size_of::<ibv_qp_attr>() - 144usize];
    ["Alignment of ibv_qp_attr"][::core::mem::align_of::<ibv_qp_attr>() - 8usize];
    ["Offset of field: ibv_qp_attr::qp_state"]
        [::core::mem::offset_of!(ibv_qp_attr, qp_state) - 0usize];
    ["Offset of field: ibv_qp_attr::cur_qp_state"]
        [::core::mem::offset_of!(ibv_qp_attr, cur_qp_state) - 4usize];
    ["Offset of field: ibv_qp_attr::path_mtu"]
        [::core::mem::offset_of!(ibv_qp_attr, path_mtu) - 8usize];
    ["Offset of field: ibv_qp_attr::path_mig_state"]
        [::core::mem::offset_of!(ibv_qp_attr, path_mig_state) - 12usize];
    ["Offset of field: ibv_qp_attr::qkey"][::core::mem::offset_of!(ibv_qp_attr, qkey) - 16usize];
    ["Offset of field: ibv_qp_attr::rq_psn"]
        [::core::mem::offset_of!(ibv_qp_attr, rq_psn) - 20usize];
    ["Offset of field: ibv_qp_attr::sq_psn"]
        [::core::mem::offset_of!(ibv_qp_attr, sq_psn) - 24usize];
    ["Offset of field: ibv_qp_attr::dest_qp_num"]
        [::core::mem::offset_of!(ibv_qp_attr, dest_qp_num) - 28usize];
    ["Offset of field: ibv_qp_attr::qp_access_flags"]
        [::core::mem::offset_of!(ibv_qp_attr, qp_access_flags) - 32usize];
    ["Offset of field: ibv_qp_attr::cap"][::core::mem::offset_of!(ibv_qp_attr, cap) - 36usize];
    ["Offset of field: ibv_qp_attr::ah_attr"]
        [::core::mem::offset_of!(ibv_qp_attr, ah_attr) - 56usize];
    ["Offset of field: ibv_qp_attr::alt_ah_attr"]
        [::core::mem::offset_of!(ibv_qp_attr, alt_ah_attr) - 88usize];
    ["Offset of field: ibv_qp_attr::pkey_index"]
        [::core::mem::offset_of!(ibv_qp_attr, pkey_index) - 120usize];
    ["Offset of field: ibv_qp_attr::alt_pkey_index"]
        [::core::mem::offset_of!(ibv_qp_attr, alt_pkey_index) - 122usize];
    ["Offset of field: ibv_qp_attr::en_sqd_async_notify"]
        [::core::mem::offset_of!(ibv_qp_attr, en_sqd_async_notify) - 124usize];
    ["Offset of field: ibv_qp_attr::sq_draining"]
        [::core::mem::offset_of!(ibv_qp_attr, sq_draining) - 125usize];
    ["Offset of field: ibv_qp_attr::max_rd_atomic"]
        [::core::mem::offset_of!(ibv_qp_attr, max_rd_atomic) - 126usize];
    ["Offset of field: ibv_qp_attr::max_dest_rd_atomic"]
        [::core::mem::offset_of!(ibv_qp_attr, max_dest_rd_atomic) - 127usize];
    ["Offset of field: ibv_qp_attr::min_rnr_timer"]
        [::core::mem::offset_of!(ibv_qp_attr, min_rnr_timer) - 128usize];
    ["Offset of field: ibv_qp_attr::port_num"]
        [::core::mem::offset_of!(ibv_qp_attr, port_num) - 129usize];
    ["Offset of field: ibv_qp_attr::timeout"]
        [::core::mem::offset_of!(ibv_qp_attr, timeout) - 130usize];
    ["Offset of field: ibv_qp_attr::retry_cnt"]
        [::core::mem::offset_of!(ibv_qp_attr, retry_cnt) - 131usize];
    ["Offset of field: ibv_qp_attr::rnr_retry"]
        [::core::mem::offset_of!(ibv_qp_attr, rnr_retry) - 132usize];
    ["Offset of field: ibv_qp_attr::alt_port_num"]
        [::core::mem::offset_of!(ibv_qp_attr, alt_port_num) - 133usize];
    ["Offset of field: ibv_qp_attr::alt_timeout"]
        [::core::mem::offset_of!(ibv_qp_attr, alt_timeout) - 134usize];
    ["Offset of field: ibv_qp_attr::rate_limit"]
        [::core::mem::offset_of!(ibv_qp_attr, rate_limit) - 136usize];
};
impl Default for ibv_qp_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_qp_rate_limit_attr {
    pub rate_limit: u32,
    pub max_burst_sz: u32,
    pub typical_pkt_sz: u16,
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_rate_limit_attr"][::core::mem::size_of::<ibv_qp_rate_limit_attr>() - 16usize];
    ["Alignment of ibv_qp_rate_limit_attr"]
        [::core::mem::align_of::<ibv_qp_rate_limit_attr>() - 4usize];
    ["Offset of field: ibv_qp_rate_limit_attr::rate_limit"]
        [::core::mem::offset_of!(ibv_qp_rate_limit_attr, rate_limit) - 0usize];
    ["Offset of field: ibv_qp_rate_limit_attr::max_burst_sz"]
        [::core::mem::offset_of!(ibv_qp_rate_limit_attr, max_burst_sz) - 4usize];
    ["Offset of field: ibv_qp_rate_limit_attr::typical_pkt_sz"]
        [::core::mem::offset_of!(ibv_qp_rate_limit_attr, typical_pkt_sz) - 8usize];
    ["Offset of field: ibv_qp_rate_limit_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_qp_rate_limit_attr, comp_mask) - 12usize];
};
pub const IBV_WR_RDMA_WRITE: ibv_wr_opcode = 0;
pub const IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_opcode = 1;
pub const IBV_WR_SEND: ibv_wr_opcode = 2;
pub const IBV_WR_SEND_WITH_IMM: ibv_wr_opcode = 3;
pub const IBV_WR_RDMA_READ: ibv_wr_opcode = 4;
pub const IBV_WR_ATOMIC_CMP_AND_SWP: ibv_wr_opcode = 5;
pub const IBV_WR_ATOMIC_FETCH_AND_ADD: ibv_wr_opcode = 6;
pub const IBV_WR_LOCAL_INV: ibv_wr_opcode = 7;
pub const IBV_WR_BIND_MW: ibv_wr_opcode = 8;
pub const IBV_WR_SEND_WITH_INV: ibv_wr_opcode = 9;
pub const IBV_WR_TSO: ibv_wr_opcode = 10;
pub const IBV_WR_DRIVER1: ibv_wr_opcode = 11;
pub const IBV_WR_FLUSH: ibv_wr_opcode = 14;
pub const IBV_WR_ATOMIC_WRITE: ibv_wr_opcode = 15;
pub type ibv_wr_opcode = libc::c_uint;
pub const IBV_SEND_FENCE: ibv_send_flags = 1;
pub const IBV_SEND_SIGNALED: ibv_send_flags = 2;
pub const IBV_SEND_SOLICITED: ibv_send_flags = 4;
pub const IBV_SEND_INLINE: ibv_send_flags = 8;
pub const IBV_SEND_IP_CSUM: ibv_send_flags = 16;
pub type ibv_send_flags = libc::c_uint;
pub const IBV_FLUSH_GLOBAL: ibv_placement_type = 1;
pub const IBV_FLUSH_PERSISTENT: ibv_placement_type = 2;
pub type ibv_placement_type = libc::c_uint;
pub const IBV_FLUSH_RANGE: ibv_selectivity_level = 0;
pub const IBV_FLUSH_MR: ibv_selectivity_level = 1;
pub type ibv_selectivity_level = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_data_buf {
    pub addr: *mut libc::c_void,
    pub length: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_data_buf"][::core::mem::size_of::<ibv_data_buf>() - 16usize];
    ["Alignment of ibv_data_buf"][::core::mem::align_of::<ibv_data_buf>() - 8usize];
    ["Offset of field: ibv_data_buf::addr"][::core::mem::offset_of!(ibv_data_buf, addr) - 0usize];
    ["Offset of field: ibv_data_buf::length"]
        [::core::mem::offset_of!(ibv_data_buf, length) - 8usize];
};
impl Default for ibv_data_buf {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_sge"][::core::mem::size_of::<ibv_sge>() - 16usize];
    ["Alignment of ibv_sge"][::core::mem::align_of::<ibv_sge>() - 8usize];
    ["Offset of field: ibv_sge::addr"][::core::mem::offset_of!(ibv_sge, addr) - 0usize];
    ["Offset of field: ibv_sge::length"][::core::mem::offset_of!(ibv_sge, length) - 8usize];
    ["Offset of field: ibv_sge::lkey"][::core::mem::offset_of!(ibv_sge, lkey) - 12usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_fd_arr {
    pub arr: *mut libc::c_int,
    pub count: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_fd_arr"][::core::mem::size_of::<ibv_fd_arr>() - 16usize];
    ["Alignment of ibv_fd_arr"][::core::mem::align_of::<ibv_fd_arr>() - 8usize];
    ["Offset of field: ibv_fd_arr::arr"][::core::mem::offset_of!(ibv_fd_arr, arr) - 0usize];
    ["Offset of field: ibv_fd_arr::count"][::core::mem::offset_of!(ibv_fd_arr, count) - 8usize];
};
impl Default for ibv_fd_arr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: libc::c_int,
    pub opcode: ibv_wr_opcode,
    pub send_flags: libc::c_uint,
    pub anon1: ibv_send_wr__bindgen_ty_1,
    pub wr: ibv_send_wr__bindgen_ty_2,
    pub qp_type: ibv_send_wr__bindgen_ty_3,
    pub anon2: ibv_send_wr__bindgen_ty_4,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_1 {
    pub imm_data: __be32,
    pub invalidate_rkey: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_send_wr__bindgen_ty_1"]
        [::core::mem::size_of::<ibv_send_wr__bindgen_ty_1>() - 4usize];
    ["Alignment of ibv_send_wr__bindgen_ty_1"]
        [::core::mem::align_of::<ibv_send_wr__bindgen_ty_1>() - 4usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_1::imm_data"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_1, imm_data) - 0usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_1::invalidate_rkey"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_1, invalidate_rkey) - 0usize];
};
impl Default for ibv_send_wr__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_2 {
    pub rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1,
    pub atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2,
    pub ud: ibv_send_wr__bindgen_ty_2__bindgen_ty_3,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    pub remote_addr: u64,
    pub rkey: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_send_wr__bindgen_ty_2__bindgen_ty_1"]
        [::core::mem::size_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_1>() - 16usize];
    ["Alignment of ibv_send_wr__bindgen_ty_2__bindgen_ty_1"]
        [::core::mem::align_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_1>() - 8usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_1::remote_addr"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_1, remote_addr) - 0usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_1::rkey"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_1, rkey) - 8usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_send_wr__bindgen_ty_2__bindgen_ty_2"]
        [::core::mem::size_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_2>() - 32usize];
    ["Alignment of ibv_send_wr__bindgen_ty_2__bindgen_ty_2"]
        [::core::mem::align_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_2>() - 8usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_2::remote_addr"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, remote_addr) - 0usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_2::compare_add"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, compare_add) - 8usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_2::swap"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, swap) - 16usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_2::rkey"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, rkey) - 24usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_send_wr__bindgen_ty_2__bindgen_ty_3"]
        [::core::mem::size_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_3>() - 16usize];
    ["Alignment of ibv_send_wr__bindgen_ty_2__bindgen_ty_3"]
        [::core::mem::align_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_3>() - 8usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_3::ah"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_3, ah) - 0usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_3::remote_qpn"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_3, remote_qpn) - 8usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_3::remote_qkey"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_3, remote_qkey) - 12usize];
};
impl Default for ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_send_wr__bindgen_ty_2"]
        [::core::mem::size_of::<ibv_send_wr__bindgen_ty_2>() - 32usize];
    ["Alignment of ibv_send_wr__bindgen_ty_2"]
        [::core::mem::align_of::<ibv_send_wr__bindgen_ty_2>() - 8usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_2::rdma"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2, rdma) - 0usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_2::atomic"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2, atomic) - 0usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_2::ud"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2, ud) - 0usize];
};
impl Default for ibv_send_wr__bindgen_ty_2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_3 {
    pub xrc: ibv_send_wr__bindgen_ty_3__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_3__bindgen_ty_1 {
    pub remote_srqn: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_send_wr__bindgen_ty_3__bindgen_ty_1"]
        [::core::mem::size_of::<ibv_send_wr__bindgen_ty_3__bindgen_ty_1>() - 4usize];
    ["Alignment of ibv_send_wr__bindgen_ty_3__bindgen_ty_1"]
        [::core::mem::align_of::<ibv_send_wr__bindgen_ty_3__bindgen_ty_1>() - 4usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_3__bindgen_ty_1::remote_srqn"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_3__bindgen_ty_1, remote_srqn) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_send_wr__bindgen_ty_3"]
        [::core::mem::size_of::<ibv_send_wr__bindgen_ty_3>() - 4usize];
    ["Alignment of ibv_send_wr__bindgen_ty_3"]
        [::core::mem::align_of::<ibv_send_wr__bindgen_ty_3>() - 4usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_3::xrc"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_3, xrc) - 0usize];
};
impl Default for ibv_send_wr__bindgen_ty_3 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_4 {
    pub bind_mw: ibv_send_wr__bindgen_ty_4__bindgen_ty_1,
    pub tso: ibv_send_wr__bindgen_ty_4__bindgen_ty_2,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_send_wr__bindgen_ty_4__bindgen_ty_1"]
        [::core::mem::size_of::<ibv_send_wr__bindgen_ty_4__bindgen_ty_1>() - 48usize];
    ["Alignment of ibv_send_wr__bindgen_ty_4__bindgen_ty_1"]
        [::core::mem::align_of::<ibv_send_wr__bindgen_ty_4__bindgen_ty_1>() - 8usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_1::mw"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_1, mw) - 0usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_1::rkey"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_1, rkey) - 8usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_1::bind_info"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_1, bind_info) - 16usize];
};
impl Default for ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
    pub hdr: *mut libc::c_void,
    pub hdr_sz: u16,
    pub mss: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_send_wr__bindgen_ty_4__bindgen_ty_2"]
        [::core::mem::size_of::<ibv_send_wr__bindgen_ty_4__bindgen_ty_2>() - 16usize];
    ["Alignment of ibv_send_wr__bindgen_ty_4__bindgen_ty_2"]
        [::core::mem::align_of::<ibv_send_wr__bindgen_ty_4__bindgen_ty_2>() - 8usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_2::hdr"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_2, hdr) - 0usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_2::hdr_sz"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_2, hdr_sz) - 8usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_2::mss"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_2, mss) - 10usize];
};
impl Default for ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_send_wr__bindgen_ty_4"]
        [::core::mem::size_of::<ibv_send_wr__bindgen_ty_4>() - 48usize];
    ["Alignment of ibv_send_wr__bindgen_ty_4"]
        [::core::mem::align_of::<ibv_send_wr__bindgen_ty_4>() - 8usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_4::bind_mw"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4, bind_mw) - 0usize];
    ["Offset of field: ibv_send_wr__bindgen_ty_4::tso"]
        [::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4, tso) - 0usize];
};
impl Default for ibv_send_wr__bindgen_ty_4 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_send_wr"][::core::mem::size_of::<ibv_send_wr>() - 128usize];
    ["Alignment of ibv_send_wr"][::core::mem::align_of::<ibv_send_wr>() - 8usize];
    ["Offset of field: ibv_send_wr::wr_id"][::core::mem::offset_of!(ibv_send_wr, wr_id) - 0usize];
    ["Offset of field: ibv_send_wr::next"][::core::mem::offset_of!(ibv_send_wr, next) - 8usize];
    ["Offset of field: ibv_send_wr::sg_list"]
        [::core::mem::offset_of!(ibv_send_wr, sg_list) - 16usize];
    ["Offset of field: ibv_send_wr::num_sge"]
        [::core::mem::offset_of!(ibv_send_wr, num_sge) - 24usize];
    ["Offset of field: ibv_send_wr::opcode"]
        [::core::mem::offset_of!(ibv_send_wr, opcode) - 28usize];
    ["Offset of field: ibv_send_wr::send_flags"]
        [::core::mem::offset_of!(ibv_send_wr, send_flags) - 32usize];
    ["Offset of field: ibv_send_wr::wr"][::core::mem::offset_of!(ibv_send_wr, wr) - 40usize];
    ["Offset of field: ibv_send_wr::qp_type"]
        [::core::mem::offset_of!(ibv_send_wr, qp_type) - 72usize];
};
impl Default for ibv_send_wr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: libc::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_recv_wr"][::core::mem::size_of::<ibv_recv_wr>() - 32usize];
    ["Alignment of ibv_recv_wr"][::core::mem::align_of::<ibv_recv_wr>() - 8usize];
    ["Offset of field: ibv_recv_wr::wr_id"][::core::mem::offset_of!(ibv_recv_wr, wr_id) - 0usize];
    ["Offset of field: ibv_recv_wr::next"][::core::mem::offset_of!(ibv_recv_wr, next) - 8usize];
    ["Offset of field: ibv_recv_wr::sg_list"]
        [::core::mem::offset_of!(ibv_recv_wr, sg_list) - 16usize];
    ["Offset of field: ibv_recv_wr::num_sge"]
        [::core::mem::offset_of!(ibv_recv_wr, num_sge) - 24usize];
};
impl Default for ibv_recv_wr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_WR_TAG_ADD: ibv_ops_wr_opcode = 0;
pub const IBV_WR_TAG_DEL: ibv_ops_wr_opcode = 1;
pub const IBV_WR_TAG_SYNC: ibv_ops_wr_opcode = 2;
pub type ibv_ops_wr_opcode = libc::c_uint;
pub const IBV_OPS_SIGNALED: ibv_ops_flags = 1;
pub const IBV_OPS_TM_SYNC: ibv_ops_flags = 2;
pub type ibv_ops_flags = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_ops_wr {
    pub wr_id: u64,
    pub next: *mut ibv_ops_wr,
    pub opcode: ibv_ops_wr_opcode,
    pub flags: libc::c_int,
    pub tm: ibv_ops_wr__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_ops_wr__bindgen_ty_1 {
    pub unexpected_cnt: u32,
    pub handle: u32,
    pub add: ibv_ops_wr__bindgen_ty_1__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_ops_wr__bindgen_ty_1__bindgen_ty_1 {
    pub recv_wr_id: u64,
    pub sg_list: *mut ibv_sge,
    pub num_sge: libc::c_int,
    pub tag: u64,
    pub mask: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_ops_wr__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::size_of::<ibv_ops_wr__bindgen_ty_1__bindgen_ty_1>() - 40usize];
    ["Alignment of ibv_ops_wr__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::align_of::<ibv_ops_wr__bindgen_ty_1__bindgen_ty_1>() - 8usize];
    ["Offset of field: ibv_ops_wr__bindgen_ty_1__bindgen_ty_1::recv_wr_id"]
        [::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1__bindgen_ty_1, recv_wr_id) - 0usize];
    ["Offset of field: ibv_ops_wr__bindgen_ty_1__bindgen_ty_1::sg_list"]
        [::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1__bindgen_ty_1, sg_list) - 8usize];
    ["Offset of field: ibv_ops_wr__bindgen_ty_1__bindgen_ty_1::num_sge"]
        [::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1__bindgen_ty_1, num_sge) - 16usize];
    ["Offset of field: ibv_ops_wr__bindgen_ty_1__bindgen_ty_1::tag"]
        [::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1__bindgen_ty_1, tag) - 24usize];
    ["Offset of field: ibv_ops_wr__bindgen_ty_1__bindgen_ty_1::mask"]
        [::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1__bindgen_ty_1, mask) - 32usize];
};
impl Default for ibv_ops_wr__bindgen_ty_1__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_ops_wr__bindgen_ty_1"]
        [::core::mem::size_of::<ibv_ops_wr__bindgen_ty_1>() - 48usize];
    ["Alignment of ibv_ops_wr__bindgen_ty_1"]
        [::core::mem::align_of::<ibv_ops_wr__bindgen_ty_1>() - 8usize];
    ["Offset of field: ibv_ops_wr__bindgen_ty_1::unexpected_cnt"]
        [::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1, unexpected_cnt) - 0usize];
    ["Offset of field: ibv_ops_wr__bindgen_ty_1::handle"]
        [::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1, handle) - 4usize];
    ["Offset of field: ibv_ops_wr__bindgen_ty_1::add"]
        [::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1, add) - 8usize];
};
impl Default for ibv_ops_wr__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_ops_wr"][::core::mem::size_of::<ibv_ops_wr>() - 72usize];
    ["Alignment of ibv_ops_wr"][::core::mem::align_of::<ibv_ops_wr>() - 8usize];
    ["Offset of field: ibv_ops_wr::wr_id"][::core::mem::offset_of!(ibv_ops_wr, wr_id) - 0usize];
    ["Offset of field: ibv_ops_wr::next"][::core::mem::offset_of!(ibv_ops_wr, next) - 8usize];
    ["Offset of field: ibv_ops_wr::opcode"][::core::mem::offset_of!(ibv_ops_wr, opcode) - 16usize];
    ["Offset of field: ibv_ops_wr::flags"][::core::mem::offset_of!(ibv_ops_wr, flags) - 20usize];
    ["Offset of field: ibv_ops_wr::tm"][::core::mem::offset_of!(ibv_ops_wr, tm) - 24usize];
};
impl Default for ibv_ops_wr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: libc::c_uint,
    pub bind_info: ibv_mw_bind_info,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_mw_bind"][::core::mem::size_of::<ibv_mw_bind>() - 48usize];
    ["Alignment of ibv_mw_bind"][::core::mem::align_of::<ibv_mw_bind>() - 8usize];
    ["Offset of field: ibv_mw_bind::wr_id"][::core::mem::offset_of!(ibv_mw_bind, wr_id) - 0usize];
    ["Offset of field: ibv_mw_bind::send_flags"]
        [::core::mem::offset_of!(ibv_mw_bind, send_flags) - 8usize];
    ["Offset of field: ibv_mw_bind::bind_info"]
        [::core::mem::offset_of!(ibv_mw_bind, bind_info) - 16usize];
};
impl Default for ibv_mw_bind {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
pub struct ibv_srq {
    pub context: *mut ibv_context,
    pub srq_context: *mut libc::c_void,
    pub pd: *mut ibv_pd,
    pub handle: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_srq"][::core::mem::size_of::<ibv_srq>() - 128usize];
    ["Alignment of ibv_srq"][::core::mem::align_of::<ibv_srq>() - 8usize];
    ["Offset of field: ibv_srq::context"][::core::mem::offset_of!(ibv_srq, context) - 0usize];
    ["Offset of field: ibv_srq::srq_context"]
        [::core::mem::offset_of!(ibv_srq, srq_context) - 8usize];
    ["Offset of field: ibv_srq::pd"][::core::mem::offset_of!(ibv_srq, pd) - 16usize];
    ["Offset of field: ibv_srq::handle"][::core::mem::offset_of!(ibv_srq, handle) - 24usize];
    ["Offset of field: ibv_srq::mutex"][::core::mem::offset_of!(ibv_srq, mutex) - 32usize];
    ["Offset of field: ibv_srq::cond"][::core::mem::offset_of!(ibv_srq, cond) - 72usize];
    ["Offset of field: ibv_srq::events_completed"]
        [::core::mem::offset_of!(ibv_srq, events_completed) - 120usize];
};
impl Default for ibv_srq {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
pub struct ibv_wq {
    pub context: *mut ibv_context,
    pub wq_context: *mut libc::c_void,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub wq_num: u32,
    pub handle: u32,
    pub state: ibv_wq_state,
    pub wq_type: ibv_wq_type,
    pub post_recv: ::core::option::Option<
        unsafe extern "C" fn(
            current: *mut ibv_wq,
            recv_wr: *mut ibv_recv_wr,
            bad_recv_wr: *mut *mut ibv_recv_wr,
        ) -> libc::c_int,
    >,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_wq"][::core::mem::size_of::<ibv_wq>() - 152usize];
    ["Alignment of ibv_wq"][::core::mem::align_of::<ibv_wq>() - 8usize];
    ["Offset of field: ibv_wq::context"][::core::mem::offset_of!(ibv_wq, context) - 0usize];
    ["Offset of field: ibv_wq::wq_context"][::core::mem::offset_of!(ibv_wq, wq_context) - 8usize];
    ["Offset of field: ibv_wq::pd"][::core::mem::offset_of!(ibv_wq, pd) - 16usize];
    ["Offset of field: ibv_wq::cq"][::core::mem::offset_of!(ibv_wq, cq) - 24usize];
    ["Offset of field: ibv_wq::wq_num"][::core::mem::offset_of!(ibv_wq, wq_num) - 32usize];
    ["Offset of field: ibv_wq::handle"][::core::mem::offset_of!(ibv_wq, handle) - 36usize];
    ["Offset of field: ibv_wq::state"][::core::mem::offset_of!(ibv_wq, state) - 40usize];
    ["Offset of field: ibv_wq::wq_type"][::core::mem::offset_of!(ibv_wq, wq_type) - 44usize];
    ["Offset of field: ibv_wq::post_recv"][::core::mem::offset_of!(ibv_wq, post_recv) - 48usize];
    ["Offset of field: ibv_wq::mutex"][::core::mem::offset_of!(ibv_wq, mutex) - 56usize];
    ["Offset of field: ibv_wq::cond"][::core::mem::offset_of!(ibv_wq, cond) - 96usize];
    ["Offset of field: ibv_wq::events_completed"]
        [::core::mem::offset_of!(ibv_wq, events_completed) - 144usize];
    ["Offset of field: ibv_wq::comp_mask"][::core::mem::offset_of!(ibv_wq, comp_mask) - 148usize];
};
impl Default for ibv_wq {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut libc::c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: ibv_qp_state,
    pub qp_type: ibv_qp_type,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp"][::core::mem::size_of::<ibv_qp>() - 160usize];
    ["Alignment of ibv_qp"][::core::mem::align_of::<ibv_qp>() - 8usize];
    ["Offset of field: ibv_qp::context"][::core::mem::offset_of!(ibv_qp, context) - 0usize];
    ["Offset of field: ibv_qp::qp_context"][::core::mem::offset_of!(ibv_qp, qp_context) - 8usize];
    ["Offset of field: ibv_qp::pd"][::core::mem::offset_of!(ibv_qp, pd) - 16usize];
    ["Offset of field: ibv_qp::send_cq"][::core::mem::offset_of!(ibv_qp, send_cq) - 24usize];
    ["Offset of field: ibv_qp::recv_cq"][::core::mem::offset_of!(ibv_qp, recv_cq) - 32usize];
    ["Offset of field: ibv_qp::srq"][::core::mem::offset_of!(ibv_qp, srq) - 40usize];
    ["Offset of field: ibv_qp::handle"][::core::mem::offset_of!(ibv_qp, handle) - 48usize];
    ["Offset of field: ibv_qp::qp_num"][::core::mem::offset_of!(ibv_qp, qp_num) - 52usize];
    ["Offset of field: ibv_qp::state"][::core::mem::offset_of!(ibv_qp, state) - 56usize];
    ["Offset of field: ibv_qp::qp_type"][::core::mem::offset_of!(ibv_qp, qp_type) - 60usize];
    ["Offset of field: ibv_qp::mutex"][::core::mem::offset_of!(ibv_qp, mutex) - 64usize];
    ["Offset of field: ibv_qp::cond"][::core::mem::offset_of!(ibv_qp, cond) - 104usize];
    ["Offset of field: ibv_qp::events_completed"]
        [::core::mem::offset_of!(ibv_qp, events_completed) - 152usize];
};
impl Default for ibv_qp {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
pub struct ibv_qp_ex {
    pub qp_base: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: libc::c_uint,
    pub wr_atomic_cmp_swp: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
            compare: u64,
            swap: u64,
        ),
    >,
    pub wr_atomic_fetch_add: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64),
    >,
    pub wr_bind_mw: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            mw: *mut ibv_mw,
            rkey: u32,
            bind_info: *const ibv_mw_bind_info,
        ),
    >,
    pub wr_local_inv:
        ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)>,
    pub wr_rdma_read: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64),
    >,
    pub wr_rdma_write: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64),
    >,
    pub wr_rdma_write_imm: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: __be32),
    >,
    pub wr_send: ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
    pub wr_send_imm:
        ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, imm_data: __be32)>,
    pub wr_send_inv:
        ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)>,
    pub wr_send_tso: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, hdr: *mut libc::c_void, hdr_sz: u16, mss: u16),
    >,
    pub wr_set_ud_addr: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            ah: *mut ibv_ah,
            remote_qpn: u32,
            remote_qkey: u32,
        ),
    >,
    pub wr_set_xrc_srqn:
        ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, remote_srqn: u32)>,
    pub wr_set_inline_data: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, addr: *mut libc::c_void, length: usize),
    >,
    pub wr_set_inline_data_list: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, num_buf: usize, buf_list: *const ibv_data_buf),
    >,
    pub wr_set_sge: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32),
    >,
    pub wr_set_sge_list: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge),
    >,
    pub wr_start: ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
    pub wr_complete:
        ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex) -> libc::c_int>,
    pub wr_abort: ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
    pub wr_atomic_write: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
            atomic_wr: *const libc::c_void,
        ),
    >,
    pub wr_flush: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
            len: usize,
            type_: u8,
            level: u8,
        ),
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_ex"][::core::mem::size_of::<ibv_qp_ex>() - 360usize];
    ["Alignment of ibv_qp_ex"][::core::mem::align_of::<ibv_qp_ex>() - 8usize];
    ["Offset of field: ibv_qp_ex::qp_base"][::core::mem::offset_of!(ibv_qp_ex, qp_base) - 0usize];
    ["Offset of field: ibv_qp_ex::comp_mask"]
        [::core::mem::offset_of!(ibv_qp_ex, comp_mask) - 160usize];
    ["Offset of field: ibv_qp_ex::wr_id"][::core::mem::offset_of!(ibv_qp_ex, wr_id) - 168usize];
    ["Offset of field: ibv_qp_ex::wr_flags"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_flags) - 176usize];
    ["Offset of field: ibv_qp_ex::wr_atomic_cmp_swp"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_atomic_cmp_swp) - 184usize];
    ["Offset of field: ibv_qp_ex::wr_atomic_fetch_add"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_atomic_fetch_add) - 192usize];
    ["Offset of field: ibv_qp_ex::wr_bind_mw"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_bind_mw) - 200usize];
    ["Offset of field: ibv_qp_ex::wr_local_inv"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_local_inv) - 208usize];
    ["Offset of field: ibv_qp_ex::wr_rdma_read"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_rdma_read) - 216usize];
    ["Offset of field: ibv_qp_ex::wr_rdma_write"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_rdma_write) - 224usize];
    ["Offset of field: ibv_qp_ex::wr_rdma_write_imm"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_rdma_write_imm) - 232usize];
    ["Offset of field: ibv_qp_ex::wr_send"][::core::mem::offset_of!(ibv_qp_ex, wr_send) - 240usize];
    ["Offset of field: ibv_qp_ex::wr_send_imm"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_send_imm) - 248usize];
    ["Offset of field: ibv_qp_ex::wr_send_inv"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_send_inv) - 256usize];
    ["Offset of field: ibv_qp_ex::wr_send_tso"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_send_tso) - 264usize];
    ["Offset of field: ibv_qp_ex::wr_set_ud_addr"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_set_ud_addr) - 272usize];
    ["Offset of field: ibv_qp_ex::wr_set_xrc_srqn"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_set_xrc_srqn) - 280usize];
    ["Offset of field: ibv_qp_ex::wr_set_inline_data"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_set_inline_data) - 288usize];
    ["Offset of field: ibv_qp_ex::wr_set_inline_data_list"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_set_inline_data_list) - 296usize];
    ["Offset of field: ibv_qp_ex::wr_set_sge"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_set_sge) - 304usize];
    ["Offset of field: ibv_qp_ex::wr_set_sge_list"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_set_sge_list) - 312usize];
    ["Offset of field: ibv_qp_ex::wr_start"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_start) - 320usize];
    ["Offset of field: ibv_qp_ex::wr_complete"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_complete) - 328usize];
    ["Offset of field: ibv_qp_ex::wr_abort"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_abort) - 336usize];
    ["Offset of field: ibv_qp_ex::wr_atomic_write"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_atomic_write) - 344usize];
    ["Offset of field: ibv_qp_ex::wr_flush"]
        [::core::mem::offset_of!(ibv_qp_ex, wr_flush) - 352usize];
};
impl Default for ibv_qp_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_ece {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_ece"][::core::mem::size_of::<ibv_ece>() - 12usize];
    ["Alignment of ibv_ece"][::core::mem::align_of::<ibv_ece>() - 4usize];
    ["Offset of field: ibv_ece::vendor_id"][::core::mem::offset_of!(ibv_ece, vendor_id) - 0usize];
    ["Offset of field: ibv_ece::options"][::core::mem::offset_of!(ibv_ece, options) - 4usize];
    ["Offset of field: ibv_ece::comp_mask"][::core::mem::offset_of!(ibv_ece, comp_mask) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: libc::c_int,
    pub refcnt: libc::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_comp_channel"][::core::mem::size_of::<ibv_comp_channel>() - 16usize];
    ["Alignment of ibv_comp_channel"][::core::mem::align_of::<ibv_comp_channel>() - 8usize];
    ["Offset of field: ibv_comp_channel::context"]
        [::core::mem::offset_of!(ibv_comp_channel, context) - 0usize];
    ["Offset of field: ibv_comp_channel::fd"]
        [::core::mem::offset_of!(ibv_comp_channel, fd) - 8usize];
    ["Offset of field: ibv_comp_channel::refcnt"]
        [::core::mem::offset_of!(ibv_comp_channel, refcnt) - 12usize];
};
impl Default for ibv_comp_channel {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut libc::c_void,
    pub handle: u32,
    pub cqe: libc::c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_cq"][::core::mem::size_of::<ibv_cq>() - 128usize];
    ["Alignment of ibv_cq"][::core::mem::align_of::<ibv_cq>() - 8usize];
    ["Offset of field: ibv_cq::context"][::core::mem::offset_of!(ibv_cq, context) - 0usize];
    ["Offset of field: ibv_cq::channel"][::core::mem::offset_of!(ibv_cq, channel) - 8usize];
    ["Offset of field: ibv_cq::cq_context"][::core::mem::offset_of!(ibv_cq, cq_context) - 16usize];
    ["Offset of field: ibv_cq::handle"][::core::mem::offset_of!(ibv_cq, handle) - 24usize];
    ["Offset of field: ibv_cq::cqe"][::core::mem::offset_of!(ibv_cq, cqe) - 28usize];
    ["Offset of field: ibv_cq::mutex"][::core::mem::offset_of!(ibv_cq, mutex) - 32usize];
    ["Offset of field: ibv_cq::cond"][::core::mem::offset_of!(ibv_cq, cond) - 72usize];
    ["Offset of field: ibv_cq::comp_events_completed"]
        [::core::mem::offset_of!(ibv_cq, comp_events_completed) - 120usize];
    ["Offset of field: ibv_cq::async_events_completed"]
        [::core::mem::offset_of!(ibv_cq, async_events_completed) - 124usize];
};
impl Default for ibv_cq {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_poll_cq_attr"][::core::mem::size_of::<ibv_poll_cq_attr>() - 4usize];
    ["Alignment of ibv_poll_cq_attr"][::core::mem::align_of::<ibv_poll_cq_attr>() - 4usize];
    ["Offset of field: ibv_poll_cq_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_poll_cq_attr, comp_mask) - 0usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_wc_tm_info {
    pub tag: u64,
    pub priv_: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_wc_tm_info"][::core::mem::size_of::<ibv_wc_tm_info>() - 16usize];
    ["Alignment of ibv_wc_tm_info"][::core::mem::align_of::<ibv_wc_tm_info>() - 8usize];
    ["Offset of field: ibv_wc_tm_info::tag"][::core::mem::offset_of!(ibv_wc_tm_info, tag) - 0usize];
    ["Offset of field: ibv_wc_tm_info::priv_"]
        [::core::mem::offset_of!(ibv_wc_tm_info, priv_) - 8usize];
};
#[repr(C)]
pub struct ibv_cq_ex {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut libc::c_void,
    pub handle: u32,
    pub cqe: libc::c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
    pub comp_mask: u32,
    pub status: ibv_wc_status,
    pub wr_id: u64,
    pub start_poll: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> libc::c_int,
    >,
    pub next_poll:
        ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> libc::c_int>,
    pub end_poll: ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex)>,
    pub read_opcode:
        ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ibv_wc_opcode>,
    pub read_vendor_err:
        ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
    pub read_byte_len: ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
    pub read_imm_data:
        ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> __be32>,
    pub read_qp_num: ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
    pub read_src_qp: ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
    pub read_wc_flags:
        ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> libc::c_uint>,
    pub read_slid: ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
    pub read_sl: ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>,
    pub read_dlid_path_bits:
        ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>,
    pub read_completion_ts:
        ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
    pub read_cvlan: ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u16>,
    pub read_flow_tag: ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
    pub read_tm_info: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info),
    >,
    pub read_completion_wallclock_ns:
        ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_cq_ex"][::core::mem::size_of::<ibv_cq_ex>() - 288usize];
    ["Alignment of ibv_cq_ex"][::core::mem::align_of::<ibv_cq_ex>() - 8usize];
    ["Offset of field: ibv_cq_ex::context"][::core::mem::offset_of!(ibv_cq_ex, context) - 0usize];
    ["Offset of field: ibv_cq_ex::channel"][::core::mem::offset_of!(ibv_cq_ex, channel) - 8usize];
    ["Offset of field: ibv_cq_ex::cq_context"]
        [::core::mem::offset_of!(ibv_cq_ex, cq_context) - 16usize];
    ["Offset of field: ibv_cq_ex::handle"][::core::mem::offset_of!(ibv_cq_ex, handle) - 24usize];
    ["Offset of field: ibv_cq_ex::cqe"][::core::mem::offset_of!(ibv_cq_ex, cqe) - 28usize];
    ["Offset of field: ibv_cq_ex::mutex"][::core::mem::offset_of!(ibv_cq_ex, mutex) - 32usize];
    ["Offset of field: ibv_cq_ex::cond"][::core::mem::offset_of!(ibv_cq_ex, cond) - 72usize];
    ["Offset of field: ibv_cq_ex::comp_events_completed"]
        [::core::mem::offset_of!(ibv_cq_ex, comp_events_completed) - 120usize];
    ["Offset of field: ibv_cq_ex::async_events_completed"]
        [::core::mem::offset_of!(ibv_cq_ex, async_events_completed) - 124usize];
    ["Offset of field: ibv_cq_ex::comp_mask"]
        [::core::mem::offset_of!(ibv_cq_ex, comp_mask) - 128usize];
    ["Offset of field: ibv_cq_ex::status"][::core::mem::offset_of!(ibv_cq_ex, status) - 132usize];
    ["Offset of field: ibv_cq_ex::wr_id"][::core::mem::offset_of!(ibv_cq_ex, wr_id) - 136usize];
    ["Offset of field: ibv_cq_ex::start_poll"]
        [::core::mem::offset_of!(ibv_cq_ex, start_poll) - 144usize];
    ["Offset of field: ibv_cq_ex::next_poll"]
        [::core::mem::offset_of!(ibv_cq_ex, next_poll) - 152usize];
    ["Offset of field: ibv_cq_ex::end_poll"]
        [::core::mem::offset_of!(ibv_cq_ex, end_poll) - 160usize];
    ["Offset of field: ibv_cq_ex::read_opcode"]
        [::core::mem::offset_of!(ibv_cq_ex, read_opcode) - 168usize];
    ["Offset of field: ibv_cq_ex::read_vendor_err"]
        [::core::mem::offset_of!(ibv_cq_ex, read_vendor_err) - 176usize];
    ["Offset of field: ibv_cq_ex::read_byte_len"]
        [::core::mem::offset_of!(ibv_cq_ex, read_byte_len) - 184usize];
    ["Offset of field: ibv_cq_ex::read_imm_data"]
        [::core::mem::offset_of!(ibv_cq_ex, read_imm_data) - 192usize];
    ["Offset of field: ibv_cq_ex::read_qp_num"]
        [::core::mem::offset_of!(ibv_cq_ex, read_qp_num) - 200usize];
    ["Offset of field: ibv_cq_ex::read_src_qp"]
        [::core::mem::offset_of!(ibv_cq_ex, read_src_qp) - 208usize];
    ["Offset of field: ibv_cq_ex::read_wc_flags"]
        [::core::mem::offset_of!(ibv_cq_ex, read_wc_flags) - 216usize];
    ["Offset of field: ibv_cq_ex::read_slid"]
        [::core::mem::offset_of!(ibv_cq_ex, read_slid) - 224usize];
    ["Offset of field: ibv_cq_ex::read_sl"][::core::mem::offset_of!(ibv_cq_ex, read_sl) - 232usize];
    ["Offset of field: ibv_cq_ex::read_dlid_path_bits"]
        [::core::mem::offset_of!(ibv_cq_ex, read_dlid_path_bits) - 240usize];
    ["Offset of field: ibv_cq_ex::read_completion_ts"]
        [::core::mem::offset_of!(ibv_cq_ex, read_completion_ts) - 248usize];
    ["Offset of field: ibv_cq_ex::read_cvlan"]
        [::core::mem::offset_of!(ibv_cq_ex, read_cvlan) - 256usize];
    ["Offset of field: ibv_cq_ex::read_flow_tag"]
        [::core::mem::offset_of!(ibv_cq_ex, read_flow_tag) - 264usize];
    ["Offset of field: ibv_cq_ex::read_tm_info"]
        [::core::mem::offset_of!(ibv_cq_ex, read_tm_info) - 272usize];
    ["Offset of field: ibv_cq_ex::read_completion_wallclock_ns"]
        [::core::mem::offset_of!(ibv_cq_ex, read_completion_wallclock_ns) - 280usize];
};
impl Default for ibv_cq_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_CQ_ATTR_MODERATE: ibv_cq_attr_mask = 1;
pub const IBV_CQ_ATTR_RESERVED: ibv_cq_attr_mask = 2;
pub type ibv_cq_attr_mask = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_moderate_cq {
    pub cq_count: u16,
    pub cq_period: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_moderate_cq"][::core::mem::size_of::<ibv_moderate_cq>() - 4usize];
    ["Alignment of ibv_moderate_cq"][::core::mem::align_of::<ibv_moderate_cq>() - 2usize];
    ["Offset of field: ibv_moderate_cq::cq_count"]
        [::core::mem::offset_of!(ibv_moderate_cq, cq_count) - 0usize];
    ["Offset of field: ibv_moderate_cq::cq_period"]
        [::core::mem::offset_of!(ibv_moderate_cq, cq_period) - 2usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_modify_cq_attr {
    pub attr_mask: u32,
    pub moderate: ibv_moderate_cq,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_modify_cq_attr"][::core::mem::size_of::<ibv_modify_cq_attr>() - 8usize];
    ["Alignment of ibv_modify_cq_attr"][::core::mem::align_of::<ibv_modify_cq_attr>() - 4usize];
    ["Offset of field: ibv_modify_cq_attr::attr_mask"]
        [::core::mem::offset_of!(ibv_modify_cq_attr, attr_mask) - 0usize];
    ["Offset of field: ibv_modify_cq_attr::moderate"]
        [::core::mem::offset_of!(ibv_modify_cq_attr, moderate) - 4usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_ah"][::core::mem::size_of::<ibv_ah>() - 24usize];
    ["Alignment of ibv_ah"][::core::mem::align_of::<ibv_ah>() - 8usize];
    ["Offset of field: ibv_ah::context"][::core::mem::offset_of!(ibv_ah, context) - 0usize];
    ["Offset of field: ibv_ah::pd"][::core::mem::offset_of!(ibv_ah, pd) - 8usize];
    ["Offset of field: ibv_ah::handle"][::core::mem::offset_of!(ibv_ah, handle) - 16usize];
};
impl Default for ibv_ah {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_FLOW_ATTR_FLAGS_DONT_TRAP: ibv_flow_flags = 2;
pub const IBV_FLOW_ATTR_FLAGS_EGRESS: ibv_flow_flags = 4;
pub type ibv_flow_flags = libc::c_uint;
pub const IBV_FLOW_ATTR_NORMAL: ibv_flow_attr_type = 0;
pub const IBV_FLOW_ATTR_ALL_DEFAULT: ibv_flow_attr_type = 1;
pub const IBV_FLOW_ATTR_MC_DEFAULT: ibv_flow_attr_type = 2;
pub const IBV_FLOW_ATTR_SNIFFER: ibv_flow_attr_type = 3;
pub type ibv_flow_attr_type = libc::c_uint;
pub const IBV_FLOW_SPEC_ETH: ibv_flow_spec_type = 32;
pub const IBV_FLOW_SPEC_IPV4: ibv_flow_spec_type = 48;
pub const IBV_FLOW_SPEC_IPV6: ibv_flow_spec_type = 49;
pub const IBV_FLOW_SPEC_IPV4_EXT: ibv_flow_spec_type = 50;
pub const IBV_FLOW_SPEC_ESP: ibv_flow_spec_type = 52;
pub const IBV_FLOW_SPEC_TCP: ibv_flow_spec_type = 64;
pub const IBV_FLOW_SPEC_UDP: ibv_flow_spec_type = 65;
pub const IBV_FLOW_SPEC_VXLAN_TUNNEL: ibv_flow_spec_type = 80;
pub const IBV_FLOW_SPEC_GRE: ibv_flow_spec_type = 81;
pub const IBV_FLOW_SPEC_MPLS: ibv_flow_spec_type = 96;
pub const IBV_FLOW_SPEC_INNER: ibv_flow_spec_type = 256;
pub const IBV_FLOW_SPEC_ACTION_TAG: ibv_flow_spec_type = 4096;
pub const IBV_FLOW_SPEC_ACTION_DROP: ibv_flow_spec_type = 4097;
pub const IBV_FLOW_SPEC_ACTION_HANDLE: ibv_flow_spec_type = 4098;
pub const IBV_FLOW_SPEC_ACTION_COUNT: ibv_flow_spec_type = 4099;
pub type ibv_flow_spec_type = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_eth_filter {
    pub dst_mac: [u8; 6usize],
    pub src_mac: [u8; 6usize],
    pub ether_type: u16,
    pub vlan_tag: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_eth_filter"][::core::mem::size_of::<ibv_flow_eth_filter>() - 16usize];
    ["Alignment of ibv_flow_eth_filter"][::core::mem::align_of::<ibv_flow_eth_filter>() - 2usize];
    ["Offset of field: ibv_flow_eth_filter::dst_mac"]
        [::core::mem::offset_of!(ibv_flow_eth_filter, dst_mac) - 0usize];
    ["Offset of field: ibv_flow_eth_filter::src_mac"]
        [::core::mem::offset_of!(ibv_flow_eth_filter, src_mac) - 6usize];
    ["Offset of field: ibv_flow_eth_filter::ether_type"]
        [::core::mem::offset_of!(ibv_flow_eth_filter, ether_type) - 12usize];
    ["Offset of field: ibv_flow_eth_filter::vlan_tag"]
        [::core::mem::offset_of!(ibv_flow_eth_filter, vlan_tag) - 14usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_eth {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_eth_filter,
    pub mask: ibv_flow_eth_filter,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_eth"][::core::mem::size_of::<ibv_flow_spec_eth>() - 40usize];
    ["Alignment of ibv_flow_spec_eth"][::core::mem::align_of::<ibv_flow_spec_eth>() - 4usize];
    ["Offset of field: ibv_flow_spec_eth::type_"]
        [::core::mem::offset_of!(ibv_flow_spec_eth, type_) - 0usize];
    ["Offset of field: ibv_flow_spec_eth::size"]
        [::core::mem::offset_of!(ibv_flow_spec_eth, size) - 4usize];
    ["Offset of field: ibv_flow_spec_eth::val"]
        [::core::mem::offset_of!(ibv_flow_spec_eth, val) - 6usize];
    ["Offset of field: ibv_flow_spec_eth::mask"]
        [::core::mem::offset_of!(ibv_flow_spec_eth, mask) - 22usize];
};
impl Default for ibv_flow_spec_eth {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_ipv4_filter {
    pub src_ip: u32,
    pub dst_ip: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_ipv4_filter"][::core::mem::size_of::<ibv_flow_ipv4_filter>() - 8usize];
    ["Alignment of ibv_flow_ipv4_filter"][::core::mem::align_of::<ibv_flow_ipv4_filter>() - 4usize];
    ["Offset of field: ibv_flow_ipv4_filter::src_ip"]
        [::core::mem::offset_of!(ibv_flow_ipv4_filter, src_ip) - 0usize];
    ["Offset of field: ibv_flow_ipv4_filter::dst_ip"]
        [::core::mem::offset_of!(ibv_flow_ipv4_filter, dst_ip) - 4usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_ipv4 {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_ipv4_filter,
    pub mask: ibv_flow_ipv4_filter,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_ipv4"][::core::mem::size_of::<ibv_flow_spec_ipv4>() - 24usize];
    ["Alignment of ibv_flow_spec_ipv4"][::core::mem::align_of::<ibv_flow_spec_ipv4>() - 4usize];
    ["Offset of field: ibv_flow_spec_ipv4::type_"]
        [::core::mem::offset_of!(ibv_flow_spec_ipv4, type_) - 0usize];
    ["Offset of field: ibv_flow_spec_ipv4::size"]
        [::core::mem::offset_of!(ibv_flow_spec_ipv4, size) - 4usize];
    ["Offset of field: ibv_flow_spec_ipv4::val"]
        [::core::mem::offset_of!(ibv_flow_spec_ipv4, val) - 8usize];
    ["Offset of field: ibv_flow_spec_ipv4::mask"]
        [::core::mem::offset_of!(ibv_flow_spec_ipv4, mask) - 16usize];
};
impl Default for ibv_flow_spec_ipv4 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_ipv4_ext_filter {
    pub src_ip: u32,
    pub dst_ip: u32,
    pub proto: u8,
    pub tos: u8,
    pub ttl: u8,
    pub flags: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_ipv4_ext_filter"]
        [::core::mem::size_of::<ibv_flow_ipv4_ext_filter>() - 12usize];
    ["Alignment of ibv_flow_ipv4_ext_filter"]
        [::core::mem::align_of::<ibv_flow_ipv4_ext_filter>() - 4usize];
    ["Offset of field: ibv_flow_ipv4_ext_filter::src_ip"]
        [::core::mem::offset_of!(ibv_flow_ipv4_ext_filter, src_ip) - 0usize];
    ["Offset of field: ibv_flow_ipv4_ext_filter::dst_ip"]
        [::core::mem::offset_of!(ibv_flow_ipv4_ext_filter, dst_ip) - 4usize];
    ["Offset of field: ibv_flow_ipv4_ext_filter::proto"]
        [::core::mem::offset_of!(ibv_flow_ipv4_ext_filter, proto) - 8usize];
    ["Offset of field: ibv_flow_ipv4_ext_filter::tos"]
        [::core::mem::offset_of!(ibv_flow_ipv4_ext_filter, tos) - 9usize];
    ["Offset of field: ibv_flow_ipv4_ext_filter::ttl"]
        [::core::mem::offset_of!(ibv_flow_ipv4_ext_filter, ttl) - 10usize];
    ["Offset of field: ibv_flow_ipv4_ext_filter::flags"]
        [::core::mem::offset_of!(ibv_flow_ipv4_ext_filter, flags) - 11usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_ipv4_ext {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_ipv4_ext_filter,
    pub mask: ibv_flow_ipv4_ext_filter,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_ipv4_ext"][::core::mem::size_of::<ibv_flow_spec_ipv4_ext>() - 32usize];
    ["Alignment of ibv_flow_spec_ipv4_ext"]
        [::core::mem::align_of::<ibv_flow_spec_ipv4_ext>() - 4usize];
    ["Offset of field: ibv_flow_spec_ipv4_ext::type_"]
        [::core::mem::offset_of!(ibv_flow_spec_ipv4_ext, type_) - 0usize];
    ["Offset of field: ibv_flow_spec_ipv4_ext::size"]
        [::core::mem::offset_of!(ibv_flow_spec_ipv4_ext, size) - 4usize];
    ["Offset of field: ibv_flow_spec_ipv4_ext::val"]
        [::core::mem::offset_of!(ibv_flow_spec_ipv4_ext, val) - 8usize];
    ["Offset of field: ibv_flow_spec_ipv4_ext::mask"]
        [::core::mem::offset_of!(ibv_flow_spec_ipv4_ext, mask) - 20usize];
};
impl Default for ibv_flow_spec_ipv4_ext {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_ipv6_filter {
    pub src_ip: [u8; 16usize],
    pub dst_ip: [u8; 16usize],
    pub flow_label: u32,
    pub next_hdr: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_ipv6_filter"][::core::mem::size_of::<ibv_flow_ipv6_filter>() - 40usize];
    ["Alignment of ibv_flow_ipv6_filter"][::core::mem::align_of::<ibv_flow_ipv6_filter>() - 4usize];
    ["Offset of field: ibv_flow_ipv6_filter::src_ip"]
        [::core::mem::offset_of!(ibv_flow_ipv6_filter, src_ip) - 0usize];
    ["Offset of field: ibv_flow_ipv6_filter::dst_ip"]
        [::core::mem::offset_of!(ibv_flow_ipv6_filter, dst_ip) - 16usize];
    ["Offset of field: ibv_flow_ipv6_filter::flow_label"]
        [::core::mem::offset_of!(ibv_flow_ipv6_filter, flow_label) - 32usize];
    ["Offset of field: ibv_flow_ipv6_filter::next_hdr"]
        [::core::mem::offset_of!(ibv_flow_ipv6_filter, next_hdr) - 36usize];
    ["Offset of field: ibv_flow_ipv6_filter::traffic_class"]
        [::core::mem::offset_of!(ibv_flow_ipv6_filter, traffic_class) - 37usize];
    ["Offset of field: ibv_flow_ipv6_filter::hop_limit"]
        [::core::mem::offset_of!(ibv_flow_ipv6_filter, hop_limit) - 38usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_ipv6 {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_ipv6_filter,
    pub mask: ibv_flow_ipv6_filter,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_ipv6"][::core::mem::size_of::<ibv_flow_spec_ipv6>() - 88usize];
    ["Alignment of ibv_flow_spec_ipv6"][::core::mem::align_of::<ibv_flow_spec_ipv6>() - 4usize];
    ["Offset of field: ibv_flow_spec_ipv6::type_"]
        [::core::mem::offset_of!(ibv_flow_spec_ipv6, type_) - 0usize];
    ["Offset of field: ibv_flow_spec_ipv6::size"]
        [::core::mem::offset_of!(ibv_flow_spec_ipv6, size) - 4usize];
    ["Offset of field: ibv_flow_spec_ipv6::val"]
        [::core::mem::offset_of!(ibv_flow_spec_ipv6, val) - 8usize];
    ["Offset of field: ibv_flow_spec_ipv6::mask"]
        [::core::mem::offset_of!(ibv_flow_spec_ipv6, mask) - 48usize];
};
impl Default for ibv_flow_spec_ipv6 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_esp_filter {
    pub spi: u32,
    pub seq: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_esp_filter"][::core::mem::size_of::<ibv_flow_esp_filter>() - 8usize];
    ["Alignment of ibv_flow_esp_filter"][::core::mem::align_of::<ibv_flow_esp_filter>() - 4usize];
    ["Offset of field: ibv_flow_esp_filter::spi"]
        [::core::mem::offset_of!(ibv_flow_esp_filter, spi) - 0usize];
    ["Offset of field: ibv_flow_esp_filter::seq"]
        [::core::mem::offset_of!(ibv_flow_esp_filter, seq) - 4usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_esp {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_esp_filter,
    pub mask: ibv_flow_esp_filter,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_esp"][::core::mem::size_of::<ibv_flow_spec_esp>() - 24usize];
    ["Alignment of ibv_flow_spec_esp"][::core::mem::align_of::<ibv_flow_spec_esp>() - 4usize];
    ["Offset of field: ibv_flow_spec_esp::type_"]
        [::core::mem::offset_of!(ibv_flow_spec_esp, type_) - 0usize];
    ["Offset of field: ibv_flow_spec_esp::size"]
        [::core::mem::offset_of!(ibv_flow_spec_esp, size) - 4usize];
    ["Offset of field: ibv_flow_spec_esp::val"]
        [::core::mem::offset_of!(ibv_flow_spec_esp, val) - 8usize];
    ["Offset of field: ibv_flow_spec_esp::mask"]
        [::core::mem::offset_of!(ibv_flow_spec_esp, mask) - 16usize];
};
impl Default for ibv_flow_spec_esp {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_tcp_udp_filter {
    pub dst_port: u16,
    pub src_port: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_tcp_udp_filter"][::core::mem::size_of::<ibv_flow_tcp_udp_filter>() - 4usize];
    ["Alignment of ibv_flow_tcp_udp_filter"]
        [::core::mem::align_of::<ibv_flow_tcp_udp_filter>() - 2usize];
    ["Offset of field: ibv_flow_tcp_udp_filter::dst_port"]
        [::core::mem::offset_of!(ibv_flow_tcp_udp_filter, dst_port) - 0usize];
    ["Offset of field: ibv_flow_tcp_udp_filter::src_port"]
        [::core::mem::offset_of!(ibv_flow_tcp_udp_filter, src_port) - 2usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_tcp_udp {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_tcp_udp_filter,
    pub mask: ibv_flow_tcp_udp_filter,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_tcp_udp"][::core::mem::size_of::<ibv_flow_spec_tcp_udp>() - 16usize];
    ["Alignment of ibv_flow_spec_tcp_udp"]
        [::core::mem::align_of::<ibv_flow_spec_tcp_udp>() - 4usize];
    ["Offset of field: ibv_flow_spec_tcp_udp::type_"]
        [::core::mem::offset_of!(ibv_flow_spec_tcp_udp, type_) - 0usize];
    ["Offset of field: ibv_flow_spec_tcp_udp::size"]
        [::core::mem::offset_of!(ibv_flow_spec_tcp_udp, size) - 4usize];
    ["Offset of field: ibv_flow_spec_tcp_udp::val"]
        [::core::mem::offset_of!(ibv_flow_spec_tcp_udp, val) - 6usize];
    ["Offset of field: ibv_flow_spec_tcp_udp::mask"]
        [::core::mem::offset_of!(ibv_flow_spec_tcp_udp, mask) - 10usize];
};
impl Default for ibv_flow_spec_tcp_udp {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_gre_filter {
    pub c_ks_res0_ver: u16,
    pub protocol: u16,
    pub key: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_gre_filter"][::core::mem::size_of::<ibv_flow_gre_filter>() - 8usize];
    ["Alignment of ibv_flow_gre_filter"][::core::mem::align_of::<ibv_flow_gre_filter>() - 4usize];
    ["Offset of field: ibv_flow_gre_filter::c_ks_res0_ver"]
        [::core::mem::offset_of!(ibv_flow_gre_filter, c_ks_res0_ver) - 0usize];
    ["Offset of field: ibv_flow_gre_filter::protocol"]
        [::core::mem::offset_of!(ibv_flow_gre_filter, protocol) - 2usize];
    ["Offset of field: ibv_flow_gre_filter::key"]
        [::core::mem::offset_of!(ibv_flow_gre_filter, key) - 4usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_gre {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_gre_filter,
    pub mask: ibv_flow_gre_filter,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_gre"][::core::mem::size_of::<ibv_flow_spec_gre>() - 24usize];
    ["Alignment of ibv_flow_spec_gre"][::core::mem::align_of::<ibv_flow_spec_gre>() - 4usize];
    ["Offset of field: ibv_flow_spec_gre::type_"]
        [::core::mem::offset_of!(ibv_flow_spec_gre, type_) - 0usize];
    ["Offset of field: ibv_flow_spec_gre::size"]
        [::core::mem::offset_of!(ibv_flow_spec_gre, size) - 4usize];
    ["Offset of field: ibv_flow_spec_gre::val"]
        [::core::mem::offset_of!(ibv_flow_spec_gre, val) - 8usize];
    ["Offset of field: ibv_flow_spec_gre::mask"]
        [::core::mem::offset_of!(ibv_flow_spec_gre, mask) - 16usize];
};
impl Default for ibv_flow_spec_gre {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_mpls_filter {
    pub label: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_mpls_filter"][::core::mem::size_of::<ibv_flow_mpls_filter>() - 4usize];
    ["Alignment of ibv_flow_mpls_filter"][::core::mem::align_of::<ibv_flow_mpls_filter>() - 4usize];
    ["Offset of field: ibv_flow_mpls_filter::label"]
        [::core::mem::offset_of!(ibv_flow_mpls_filter, label) - 0usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_mpls {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_mpls_filter,
    pub mask: ibv_flow_mpls_filter,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_mpls"][::core::mem::size_of::<ibv_flow_spec_mpls>() - 16usize];
    ["Alignment of ibv_flow_spec_mpls"][::core::mem::align_of::<ibv_flow_spec_mpls>() - 4usize];
    ["Offset of field: ibv_flow_spec_mpls::type_"]
        [::core::mem::offset_of!(ibv_flow_spec_mpls, type_) - 0usize];
    ["Offset of field: ibv_flow_spec_mpls::size"]
        [::core::mem::offset_of!(ibv_flow_spec_mpls, size) - 4usize];
    ["Offset of field: ibv_flow_spec_mpls::val"]
        [::core::mem::offset_of!(ibv_flow_spec_mpls, val) - 8usize];
    ["Offset of field: ibv_flow_spec_mpls::mask"]
        [::core::mem::offset_of!(ibv_flow_spec_mpls, mask) - 12usize];
};
impl Default for ibv_flow_spec_mpls {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_tunnel_filter {
    pub tunnel_id: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_tunnel_filter"][::core::mem::size_of::<ibv_flow_tunnel_filter>() - 4usize];
    ["Alignment of ibv_flow_tunnel_filter"]
        [::core::mem::align_of::<ibv_flow_tunnel_filter>() - 4usize];
    ["Offset of field: ibv_flow_tunnel_filter::tunnel_id"]
        [::core::mem::offset_of!(ibv_flow_tunnel_filter, tunnel_id) - 0usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_tunnel {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_tunnel_filter,
    pub mask: ibv_flow_tunnel_filter,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_tunnel"][::core::mem::size_of::<ibv_flow_spec_tunnel>() - 16usize];
    ["Alignment of ibv_flow_spec_tunnel"][::core::mem::align_of::<ibv_flow_spec_tunnel>() - 4usize];
    ["Offset of field: ibv_flow_spec_tunnel::type_"]
        [::core::mem::offset_of!(ibv_flow_spec_tunnel, type_) - 0usize];
    ["Offset of field: ibv_flow_spec_tunnel::size"]
        [::core::mem::offset_of!(ibv_flow_spec_tunnel, size) - 4usize];
    ["Offset of field: ibv_flow_spec_tunnel::val"]
        [::core::mem::offset_of!(ibv_flow_spec_tunnel, val) - 8usize];
    ["Offset of field: ibv_flow_spec_tunnel::mask"]
        [::core::mem::offset_of!(ibv_flow_spec_tunnel, mask) - 12usize];
};
impl Default for ibv_flow_spec_tunnel {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_action_tag {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub tag_id: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_action_tag"]
        [::core::mem::size_of::<ibv_flow_spec_action_tag>() - 12usize];
    ["Alignment of ibv_flow_spec_action_tag"]
        [::core::mem::align_of::<ibv_flow_spec_action_tag>() - 4usize];
    ["Offset of field: ibv_flow_spec_action_tag::type_"]
        [::core::mem::offset_of!(ibv_flow_spec_action_tag, type_) - 0usize];
    ["Offset of field: ibv_flow_spec_action_tag::size"]
        [::core::mem::offset_of!(ibv_flow_spec_action_tag, size) - 4usize];
    ["Offset of field: ibv_flow_spec_action_tag::tag_id"]
        [::core::mem::offset_of!(ibv_flow_spec_action_tag, tag_id) - 8usize];
};
impl Default for ibv_flow_spec_action_tag {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_action_drop {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_action_drop"]
        [::core::mem::size_of::<ibv_flow_spec_action_drop>() - 8usize];
    ["Alignment of ibv_flow_spec_action_drop"]
        [::core::mem::align_of::<ibv_flow_spec_action_drop>() - 4usize];
    ["Offset of field: ibv_flow_spec_action_drop::type_"]
        [::core::mem::offset_of!(ibv_flow_spec_action_drop, type_) - 0usize];
    ["Offset of field: ibv_flow_spec_action_drop::size"]
        [::core::mem::offset_of!(ibv_flow_spec_action_drop, size) - 4usize];
};
impl Default for ibv_flow_spec_action_drop {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_action_handle {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub action: *const ibv_flow_action,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_action_handle"]
        [::core::mem::size_of::<ibv_flow_spec_action_handle>() - 16usize];
    ["Alignment of ibv_flow_spec_action_handle"]
        [::core::mem::align_of::<ibv_flow_spec_action_handle>() - 8usize];
    ["Offset of field: ibv_flow_spec_action_handle::type_"]
        [::core::mem::offset_of!(ibv_flow_spec_action_handle, type_) - 0usize];
    ["Offset of field: ibv_flow_spec_action_handle::size"]
        [::core::mem::offset_of!(ibv_flow_spec_action_handle, size) - 4usize];
    ["Offset of field: ibv_flow_spec_action_handle::action"]
        [::core::mem::offset_of!(ibv_flow_spec_action_handle, action) - 8usize];
};
impl Default for ibv_flow_spec_action_handle {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_counter_action {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub counters: *mut ibv_counters,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_counter_action"]
        [::core::mem::size_of::<ibv_flow_spec_counter_action>() - 16usize];
    ["Alignment of ibv_flow_spec_counter_action"]
        [::core::mem::align_of::<ibv_flow_spec_counter_action>() - 8usize];
    ["Offset of field: ibv_flow_spec_counter_action::type_"]
        [::core::mem::offset_of!(ibv_flow_spec_counter_action, type_) - 0usize];
    ["Offset of field: ibv_flow_spec_counter_action::size"]
        [::core::mem::offset_of!(ibv_flow_spec_counter_action, size) - 4usize];
    ["Offset of field: ibv_flow_spec_counter_action::counters"]
        [::core::mem::offset_of!(ibv_flow_spec_counter_action, counters) - 8usize];
};
impl Default for ibv_flow_spec_counter_action {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_flow_spec {
    pub anon1: ibv_flow_spec__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_flow_spec__bindgen_ty_1 {
    pub hdr: ibv_flow_spec__bindgen_ty_1__bindgen_ty_1,
    pub eth: ibv_flow_spec_eth,
    pub ipv4: ibv_flow_spec_ipv4,
    pub tcp_udp: ibv_flow_spec_tcp_udp,
    pub ipv4_ext: ibv_flow_spec_ipv4_ext,
    pub ipv6: ibv_flow_spec_ipv6,
    pub esp: ibv_flow_spec_esp,
    pub tunnel: ibv_flow_spec_tunnel,
    pub gre: ibv_flow_spec_gre,
    pub mpls: ibv_flow_spec_mpls,
    pub flow_tag: ibv_flow_spec_action_tag,
    pub drop: ibv_flow_spec_action_drop,
    pub handle: ibv_flow_spec_action_handle,
    pub flow_count: ibv_flow_spec_counter_action,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec__bindgen_ty_1__bindgen_ty_1 {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::size_of::<ibv_flow_spec__bindgen_ty_1__bindgen_ty_1>() - 8usize];
    ["Alignment of ibv_flow_spec__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::align_of::<ibv_flow_spec__bindgen_ty_1__bindgen_ty_1>() - 4usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1__bindgen_ty_1::type_"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1__bindgen_ty_1, type_) - 0usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1__bindgen_ty_1::size"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1__bindgen_ty_1, size) - 4usize];
};
impl Default for ibv_flow_spec__bindgen_ty_1__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec__bindgen_ty_1"]
        [::core::mem::size_of::<ibv_flow_spec__bindgen_ty_1>() - 88usize];
    ["Alignment of ibv_flow_spec__bindgen_ty_1"]
        [::core::mem::align_of::<ibv_flow_spec__bindgen_ty_1>() - 8usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1::hdr"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, hdr) - 0usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1::eth"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, eth) - 0usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1::ipv4"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, ipv4) - 0usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1::tcp_udp"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, tcp_udp) - 0usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1::ipv4_ext"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, ipv4_ext) - 0usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1::ipv6"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, ipv6) - 0usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1::esp"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, esp) - 0usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1::tunnel"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, tunnel) - 0usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1::gre"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, gre) - 0usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1::mpls"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, mpls) - 0usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1::flow_tag"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, flow_tag) - 0usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1::drop"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, drop) - 0usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1::handle"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, handle) - 0usize];
    ["Offset of field: ibv_flow_spec__bindgen_ty_1::flow_count"]
        [::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, flow_count) - 0usize];
};
impl Default for ibv_flow_spec__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec"][::core::mem::size_of::<ibv_flow_spec>() - 88usize];
    ["Alignment of ibv_flow_spec"][::core::mem::align_of::<ibv_flow_spec>() - 8usize];
};
impl Default for ibv_flow_spec {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_attr {
    pub comp_mask: u32,
    pub type_: ibv_flow_attr_type,
    pub size: u16,
    pub priority: u16,
    pub num_of_specs: u8,
    pub port: u8,
    pub flags: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_attr"][::core::mem::size_of::<ibv_flow_attr>() - 20usize];
    ["Alignment of ibv_flow_attr"][::core::mem::align_of::<ibv_flow_attr>() - 4usize];
    ["Offset of field: ibv_flow_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_flow_attr, comp_mask) - 0usize];
    ["Offset of field: ibv_flow_attr::type_"]
        [::core::mem::offset_of!(ibv_flow_attr, type_) - 4usize];
    ["Offset of field: ibv_flow_attr::size"][::core::mem::offset_of!(ibv_flow_attr, size) - 8usize];
    ["Offset of field: ibv_flow_attr::priority"]
        [::core::mem::offset_of!(ibv_flow_attr, priority) - 10usize];
    ["Offset of field: ibv_flow_attr::num_of_specs"]
        [::core::mem::offset_of!(ibv_flow_attr, num_of_specs) - 12usize];
    ["Offset of field: ibv_flow_attr::port"]
        [::core::mem::offset_of!(ibv_flow_attr, port) - 13usize];
    ["Offset of field: ibv_flow_attr::flags"]
        [::core::mem::offset_of!(ibv_flow_attr, flags) - 16usize];
};
impl Default for ibv_flow_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow {
    pub comp_mask: u32,
    pub context: *mut ibv_context,
    pub handle: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow"][::core::mem::size_of::<ibv_flow>() - 24usize];
    ["Alignment of ibv_flow"][::core::mem::align_of::<ibv_flow>() - 8usize];
    ["Offset of field: ibv_flow::comp_mask"][::core::mem::offset_of!(ibv_flow, comp_mask) - 0usize];
    ["Offset of field: ibv_flow::context"][::core::mem::offset_of!(ibv_flow, context) - 8usize];
    ["Offset of field: ibv_flow::handle"][::core::mem::offset_of!(ibv_flow, handle) - 16usize];
};
impl Default for ibv_flow {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_action {
    pub context: *mut ibv_context,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_action"][::core::mem::size_of::<ibv_flow_action>() - 8usize];
    ["Alignment of ibv_flow_action"][::core::mem::align_of::<ibv_flow_action>() - 8usize];
    ["Offset of field: ibv_flow_action::context"]
        [::core::mem::offset_of!(ibv_flow_action, context) - 0usize];
};
impl Default for ibv_flow_action {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_FLOW_ACTION_ESP_MASK_ESN: ibv_flow_action_esp_mask = 1;
pub type ibv_flow_action_esp_mask = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_action_esp_attr {
    pub esp_attr: *mut ib_uverbs_flow_action_esp,
    pub keymat_proto: ib_uverbs_flow_action_esp_keymat,
    pub keymat_len: u16,
    pub keymat_ptr: *mut libc::c_void,
    pub replay_proto: ib_uverbs_flow_action_esp_replay,
    pub replay_len: u16,
    pub replay_ptr: *mut libc::c_void,
    pub esp_encap: *mut ib_uverbs_flow_action_esp_encap,
    pub comp_mask: u32,
    pub esn: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_action_esp_attr"]
        [::core::mem::size_of::<ibv_flow_action_esp_attr>() - 56usize];
    ["Alignment of ibv_flow_action_esp_attr"]
        [::core::mem::align_of::<ibv_flow_action_esp_attr>() - 8usize];
    ["Offset of field: ibv_flow_action_esp_attr::esp_attr"]
        [::core::mem::offset_of!(ibv_flow_action_esp_attr, esp_attr) - 0usize];
    ["Offset of field: ibv_flow_action_esp_attr::keymat_proto"]
        [::core::mem::offset_of!(ibv_flow_action_esp_attr, keymat_proto) - 8usize];
    ["Offset of field: ibv_flow_action_esp_attr::keymat_len"]
        [::core::mem::offset_of!(ibv_flow_action_esp_attr, keymat_len) - 12usize];
    ["Offset of field: ibv_flow_action_esp_attr::keymat_ptr"]
        [::core::mem::offset_of!(ibv_flow_action_esp_attr, keymat_ptr) - 16usize];
    ["Offset of field: ibv_flow_action_esp_attr::replay_proto"]
        [::core::mem::offset_of!(ibv_flow_action_esp_attr, replay_proto) - 24usize];
    ["Offset of field: ibv_flow_action_esp_attr::replay_len"]
        [::core::mem::offset_of!(ibv_flow_action_esp_attr, replay_len) - 28usize];
    ["Offset of field: ibv_flow_action_esp_attr::replay_ptr"]
        [::core::mem::offset_of!(ibv_flow_action_esp_attr, replay_ptr) - 32usize];
    ["Offset of field: ibv_flow_action_esp_attr::esp_encap"]
        [::core::mem::offset_of!(ibv_flow_action_esp_attr, esp_encap) - 40usize];
    ["Offset of field: ibv_flow_action_esp_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_flow_action_esp_attr, comp_mask) - 48usize];
    ["Offset of field: ibv_flow_action_esp_attr::esn"]
        [::core::mem::offset_of!(ibv_flow_action_esp_attr, esn) - 52usize];
};
impl Default for ibv_flow_action_esp_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct _ibv_device_ops {
    pub _dummy1: ::core::option::Option<
        unsafe extern "C" fn(device: *mut ibv_device, cmd_fd: libc::c_int) -> *mut ibv_context,
    >,
    pub _dummy2: ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context)>,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _ibv_device_ops"][::core::mem::size_of::<_ibv_device_ops>() - 16usize];
    ["Alignment of _ibv_device_ops"][::core::mem::align_of::<_ibv_device_ops>() - 8usize];
    ["Offset of field: _ibv_device_ops::_dummy1"]
        [::core::mem::offset_of!(_ibv_device_ops, _dummy1) - 0usize];
    ["Offset of field: _ibv_device_ops::_dummy2"]
        [::core::mem::offset_of!(_ibv_device_ops, _dummy2) - 8usize];
};
pub const IBV_SYSFS_NAME_MAX: _bindgen_ty_17 = 64;
pub const IBV_SYSFS_PATH_MAX: _bindgen_ty_17 = 256;
pub type _bindgen_ty_17 = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device {
    pub _ops: _ibv_device_ops,
    pub node_type: ibv_node_type,
    pub transport_type: ibv_transport_type,
    pub name: [libc::c_char; 64usize],
    pub dev_name: [libc::c_char; 64usize],
    pub dev_path: [libc::c_char; 256usize],
    pub ibdev_path: [libc::c_char; 256usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_device"][::core::mem::size_of::<ibv_device>() - 664usize];
    ["Alignment of ibv_device"][::core::mem::align_of::<ibv_device>() - 8usize];
    ["Offset of field: ibv_device::_ops"][::core::mem::offset_of!(ibv_device, _ops) - 0usize];
    ["Offset of field: ibv_device::node_type"]
        [::core::mem::offset_of!(ibv_device, node_type) - 16usize];
    ["Offset of field: ibv_device::transport_type"]
        [::core::mem::offset_of!(ibv_device, transport_type) - 20usize];
    ["Offset of field: ibv_device::name"][::core::mem::offset_of!(ibv_device, name) - 24usize];
    ["Offset of field: ibv_device::dev_name"]
        [::core::mem::offset_of!(ibv_device, dev_name) - 88usize];
    ["Offset of field: ibv_device::dev_path"]
        [::core::mem::offset_of!(ibv_device, dev_path) - 152usize];
    ["Offset of field: ibv_device::ibdev_path"]
        [::core::mem::offset_of!(ibv_device, ibdev_path) - 408usize];
};
impl Default for ibv_device {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _compat_ibv_port_attr {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_context_ops {
    pub _compat_query_device: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            device_attr: *mut ibv_device_attr,
        ) -> libc::c_int,
    >,
    pub _compat_query_port: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut _compat_ibv_port_attr,
        ) -> libc::c_int,
    >,
    pub _compat_alloc_pd: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_dealloc_pd: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_reg_mr: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_rereg_mr: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_dereg_mr: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub alloc_mw: ::core::option::Option<
        unsafe extern "C" fn(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw,
    >,
    pub bind_mw: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            mw: *mut ibv_mw,
            mw_bind: *mut ibv_mw_bind,
        ) -> libc::c_int,
    >,
    pub dealloc_mw: ::core::option::Option<unsafe extern "C" fn(mw: *mut ibv_mw) -> libc::c_int>,
    pub _compat_create_cq: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub poll_cq: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut ibv_cq,
            num_entries: libc::c_int,
            wc: *mut ibv_wc,
        ) -> libc::c_int,
    >,
    pub req_notify_cq: ::core::option::Option<
        unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: libc::c_int) -> libc::c_int,
    >,
    pub _compat_cq_event: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_resize_cq: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_destroy_cq: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_create_srq: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_modify_srq: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_query_srq: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_destroy_srq: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub post_srq_recv: ::core::option::Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            recv_wr: *mut ibv_recv_wr,
            bad_recv_wr: *mut *mut ibv_recv_wr,
        ) -> libc::c_int,
    >,
    pub _compat_create_qp: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_query_qp: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_modify_qp: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_destroy_qp: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub post_send: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_send_wr,
            bad_wr: *mut *mut ibv_send_wr,
        ) -> libc::c_int,
    >,
    pub post_recv: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_recv_wr,
            bad_wr: *mut *mut ibv_recv_wr,
        ) -> libc::c_int,
    >,
    pub _compat_create_ah: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_destroy_ah: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_attach_mcast: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_detach_mcast: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
    pub _compat_async_event: ::core::option::Option<unsafe extern "C" fn() -> *mut libc::c_void>,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_context_ops"][::core::mem::size_of::<ibv_context_ops>() - 256usize];
    ["Alignment of ibv_context_ops"][::core::mem::align_of::<ibv_context_ops>() - 8usize];
    ["Offset of field: ibv_context_ops::_compat_query_device"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_query_device) - 0usize];
    ["Offset of field: ibv_context_ops::_compat_query_port"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_query_port) - 8usize];
    ["Offset of field: ibv_context_ops::_compat_alloc_pd"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_alloc_pd) - 16usize];
    ["Offset of field: ibv_context_ops::_compat_dealloc_pd"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_dealloc_pd) - 24usize];
    ["Offset of field: ibv_context_ops::_compat_reg_mr"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_reg_mr) - 32usize];
    ["Offset of field: ibv_context_ops::_compat_rereg_mr"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_rereg_mr) - 40usize];
    ["Offset of field: ibv_context_ops::_compat_dereg_mr"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_dereg_mr) - 48usize];
    ["Offset of field: ibv_context_ops::alloc_mw"]
        [::core::mem::offset_of!(ibv_context_ops, alloc_mw) - 56usize];
    ["Offset of field: ibv_context_ops::bind_mw"]
        [::core::mem::offset_of!(ibv_context_ops, bind_mw) - 64usize];
    ["Offset of field: ibv_context_ops::dealloc_mw"]
        [::core::mem::offset_of!(ibv_context_ops, dealloc_mw) - 72usize];
    ["Offset of field: ibv_context_ops::_compat_create_cq"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_create_cq) - 80usize];
    ["Offset of field: ibv_context_ops::poll_cq"]
        [::core::mem::offset_of!(ibv_context_ops, poll_cq) - 88usize];
    ["Offset of field: ibv_context_ops::req_notify_cq"]
        [::core::mem::offset_of!(ibv_context_ops, req_notify_cq) - 96usize];
    ["Offset of field: ibv_context_ops::_compat_cq_event"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_cq_event) - 104usize];
    ["Offset of field: ibv_context_ops::_compat_resize_cq"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_resize_cq) - 112usize];
    ["Offset of field: ibv_context_ops::_compat_destroy_cq"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_destroy_cq) - 120usize];
    ["Offset of field: ibv_context_ops::_compat_create_srq"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_create_srq) - 128usize];
    ["Offset of field: ibv_context_ops::_compat_modify_srq"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_modify_srq) - 136usize];
    ["Offset of field: ibv_context_ops::_compat_query_srq"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_query_srq) - 144usize];
    ["Offset of field: ibv_context_ops::_compat_destroy_srq"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_destroy_srq) - 152usize];
    ["Offset of field: ibv_context_ops::post_srq_recv"]
        [::core::mem::offset_of!(ibv_context_ops, post_srq_recv) - 160usize];
    ["Offset of field: ibv_context_ops::_compat_create_qp"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_create_qp) - 168usize];
    ["Offset of field: ibv_context_ops::_compat_query_qp"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_query_qp) - 176usize];
    ["Offset of field: ibv_context_ops::_compat_modify_qp"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_modify_qp) - 184usize];
    ["Offset of field: ibv_context_ops::_compat_destroy_qp"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_destroy_qp) - 192usize];
    ["Offset of field: ibv_context_ops::post_send"]
        [::core::mem::offset_of!(ibv_context_ops, post_send) - 200usize];
    ["Offset of field: ibv_context_ops::post_recv"]
        [::core::mem::offset_of!(ibv_context_ops, post_recv) - 208usize];
    ["Offset of field: ibv_context_ops::_compat_create_ah"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_create_ah) - 216usize];
    ["Offset of field: ibv_context_ops::_compat_destroy_ah"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_destroy_ah) - 224usize];
    ["Offset of field: ibv_context_ops::_compat_attach_mcast"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_attach_mcast) - 232usize];
    ["Offset of field: ibv_context_ops::_compat_detach_mcast"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_detach_mcast) - 240usize];
    ["Offset of field: ibv_context_ops::_compat_async_event"]
        [::core::mem::offset_of!(ibv_context_ops, _compat_async_event) - 248usize];
};
#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: libc::c_int,
    pub async_fd: libc::c_int,
    pub num_comp_vectors: libc::c_int,
    pub mutex: pthread_mutex_t,
    pub abi_compat: *mut libc::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_context"][::core::mem::size_of::<ibv_context>() - 328usize];
    ["Alignment of ibv_context"][::core::mem::align_of::<ibv_context>() - 8usize];
    ["Offset of field: ibv_context::device"][::core::mem::offset_of!(ibv_context, device) - 0usize];
    ["Offset of field: ibv_context::ops"][::core::mem::offset_of!(ibv_context, ops) - 8usize];
    ["Offset of field: ibv_context::cmd_fd"]
        [::core::mem::offset_of!(ibv_context, cmd_fd) - 264usize];
    ["Offset of field: ibv_context::async_fd"]
        [::core::mem::offset_of!(ibv_context, async_fd) - 268usize];
    ["Offset of field: ibv_context::num_comp_vectors"]
        [::core::mem::offset_of!(ibv_context, num_comp_vectors) - 272usize];
    ["Offset of field: ibv_context::mutex"][::core::mem::offset_of!(ibv_context, mutex) - 280usize];
    ["Offset of field: ibv_context::abi_compat"]
        [::core::mem::offset_of!(ibv_context, abi_compat) - 320usize];
};
impl Default for ibv_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: ibv_cq_init_attr_mask = 1;
pub const IBV_CQ_INIT_ATTR_MASK_PD: ibv_cq_init_attr_mask = 2;
pub type ibv_cq_init_attr_mask = libc::c_uint;
pub const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: ibv_create_cq_attr_flags = 1;
pub const IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: ibv_create_cq_attr_flags = 2;
pub type ibv_create_cq_attr_flags = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut libc::c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_cq_init_attr_ex"][::core::mem::size_of::<ibv_cq_init_attr_ex>() - 56usize];
    ["Alignment of ibv_cq_init_attr_ex"][::core::mem::align_of::<ibv_cq_init_attr_ex>() - 8usize];
    ["Offset of field: ibv_cq_init_attr_ex::cqe"]
        [::core::mem::offset_of!(ibv_cq_init_attr_ex, cqe) - 0usize];
    ["Offset of field: ibv_cq_init_attr_ex::cq_context"]
        [::core::mem::offset_of!(ibv_cq_init_attr_ex, cq_context) - 8usize];
    ["Offset of field: ibv_cq_init_attr_ex::channel"]
        [::core::mem::offset_of!(ibv_cq_init_attr_ex, channel) - 16usize];
    ["Offset of field: ibv_cq_init_attr_ex::comp_vector"]
        [::core::mem::offset_of!(ibv_cq_init_attr_ex, comp_vector) - 24usize];
    ["Offset of field: ibv_cq_init_attr_ex::wc_flags"]
        [::core::mem::offset_of!(ibv_cq_init_attr_ex, wc_flags) - 32usize];
    ["Offset of field: ibv_cq_init_attr_ex::comp_mask"]
        [::core::mem::offset_of!(ibv_cq_init_attr_ex, comp_mask) - 40usize];
    ["Offset of field: ibv_cq_init_attr_ex::flags"]
        [::core::mem::offset_of!(ibv_cq_init_attr_ex, flags) - 44usize];
    ["Offset of field: ibv_cq_init_attr_ex::parent_domain"]
        [::core::mem::offset_of!(ibv_cq_init_attr_ex, parent_domain) - 48usize];
};
impl Default for ibv_cq_init_attr_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_QP_ATTACH_COMP_CNTR_OP_SEND: ibv_qp_attach_comp_cntr_op = 1;
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RECV: ibv_qp_attach_comp_cntr_op = 2;
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ: ibv_qp_attach_comp_cntr_op = 4;
pub const IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ: ibv_qp_attach_comp_cntr_op = 8;
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE: ibv_qp_attach_comp_cntr_op = 16;
pub const IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE: ibv_qp_attach_comp_cntr_op = 32;
pub type ibv_qp_attach_comp_cntr_op = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_comp_cntr_caps {
    pub max_value: u64,
    pub max_counters: u32,
    pub supported_qp_attach_ops: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_comp_cntr_caps"][::core::mem::size_of::<ibv_comp_cntr_caps>() - 16usize];
    ["Alignment of ibv_comp_cntr_caps"][::core::mem::align_of::<ibv_comp_cntr_caps>() - 8usize];
    ["Offset of field: ibv_comp_cntr_caps::max_value"]
        [::core::mem::offset_of!(ibv_comp_cntr_caps, max_value) - 0usize];
    ["Offset of field: ibv_comp_cntr_caps::max_counters"]
        [::core::mem::offset_of!(ibv_comp_cntr_caps, max_counters) - 8usize];
    ["Offset of field: ibv_comp_cntr_caps::supported_qp_attach_ops"]
        [::core::mem::offset_of!(ibv_comp_cntr_caps, supported_qp_attach_ops) - 12usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_comp_cntr {
    pub context: *mut ibv_context,
    pub handle: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_comp_cntr"][::core::mem::size_of::<ibv_comp_cntr>() - 16usize];
    ["Alignment of ibv_comp_cntr"][::core::mem::align_of::<ibv_comp_cntr>() - 8usize];
    ["Offset of field: ibv_comp_cntr::context"]
        [::core::mem::offset_of!(ibv_comp_cntr, context) - 0usize];
    ["Offset of field: ibv_comp_cntr::handle"]
        [::core::mem::offset_of!(ibv_comp_cntr, handle) - 8usize];
};
impl Default for ibv_comp_cntr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_COMP_CNTR_TYPE_WRS: ibv_comp_cntr_type = 0;
pub const IBV_COMP_CNTR_TYPE_BYTES: ibv_comp_cntr_type = 1;
pub type ibv_comp_cntr_type = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_comp_cntr_init_attr {
    pub comp_mask: u32,
    pub type_: ibv_comp_cntr_type,
    pub flags: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_comp_cntr_init_attr"]
        [::core::mem::size_of::<ibv_comp_cntr_init_attr>() - 12usize];
    ["Alignment of ibv_comp_cntr_init_attr"]
        [::core::mem::align_of::<ibv_comp_cntr_init_attr>() - 4usize];
    ["Offset of field: ibv_comp_cntr_init_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_comp_cntr_init_attr, comp_mask) - 0usize];
    ["Offset of field: ibv_comp_cntr_init_attr::type_"]
        [::core::mem::offset_of!(ibv_comp_cntr_init_attr, type_) - 4usize];
    ["Offset of field: ibv_comp_cntr_init_attr::flags"]
        [::core::mem::offset_of!(ibv_comp_cntr_init_attr, flags) - 8usize];
};
impl Default for ibv_comp_cntr_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_qp_attach_comp_cntr_attr {
    pub comp_mask: u32,
    pub op_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_attach_comp_cntr_attr"]
        [::core::mem::size_of::<ibv_qp_attach_comp_cntr_attr>() - 8usize];
    ["Alignment of ibv_qp_attach_comp_cntr_attr"]
        [::core::mem::align_of::<ibv_qp_attach_comp_cntr_attr>() - 4usize];
    ["Offset of field: ibv_qp_attach_comp_cntr_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_qp_attach_comp_cntr_attr, comp_mask) - 0usize];
    ["Offset of field: ibv_qp_attach_comp_cntr_attr::op_mask"]
        [::core::mem::offset_of!(ibv_qp_attach_comp_cntr_attr, op_mask) - 4usize];
};
pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: ibv_parent_domain_init_attr_mask = 1;
pub const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: ibv_parent_domain_init_attr_mask = 2;
pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC: ibv_parent_domain_init_attr_mask =
    4;
pub type ibv_parent_domain_init_attr_mask = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: ::core::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            pd_context: *mut libc::c_void,
            size: usize,
            alignment: usize,
            resource_type: u64,
        ) -> *mut libc::c_void,
    >,
    pub free: ::core::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            pd_context: *mut libc::c_void,
            ptr: *mut libc::c_void,
            resource_type: u64,
        ),
    >,
    pub pd_context: *mut libc::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_parent_domain_init_attr"]
        [::core::mem::size_of::<ibv_parent_domain_init_attr>() - 48usize];
    ["Alignment of ibv_parent_domain_init_attr"]
        [::core::mem::align_of::<ibv_parent_domain_init_attr>() - 8usize];
    ["Offset of field: ibv_parent_domain_init_attr::pd"]
        [::core::mem::offset_of!(ibv_parent_domain_init_attr, pd) - 0usize];
    ["Offset of field: ibv_parent_domain_init_attr::td"]
        [::core::mem::offset_of!(ibv_parent_domain_init_attr, td) - 8usize];
    ["Offset of field: ibv_parent_domain_init_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_parent_domain_init_attr, comp_mask) - 16usize];
    ["Offset of field: ibv_parent_domain_init_attr::alloc"]
        [::core::mem::offset_of!(ibv_parent_domain_init_attr, alloc) - 24usize];
    ["Offset of field: ibv_parent_domain_init_attr::free"]
        [::core::mem::offset_of!(ibv_parent_domain_init_attr, free) - 32usize];
    ["Offset of field: ibv_parent_domain_init_attr::pd_context"]
        [::core::mem::offset_of!(ibv_parent_domain_init_attr, pd_context) - 40usize];
};
impl Default for ibv_parent_domain_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_TPH_MEM_TYPE_VM: ibv_tph_mem_type = 0;
pub const IBV_TPH_MEM_TYPE_PM: ibv_tph_mem_type = 1;
pub type ibv_tph_mem_type = libc::c_uint;
pub const IBV_DMAH_INIT_ATTR_MASK_CPU_ID: ibv_dmah_init_attr_mask = 1;
pub const IBV_DMAH_INIT_ATTR_MASK_PH: ibv_dmah_init_attr_mask = 2;
pub const IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE: ibv_dmah_init_attr_mask = 4;
pub type ibv_dmah_init_attr_mask = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_dmah_init_attr {
    pub comp_mask: u32,
    pub cpu_id: u32,
    pub ph: u8,
    pub tph_mem_type: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_dmah_init_attr"][::core::mem::size_of::<ibv_dmah_init_attr>() - 12usize];
    ["Alignment of ibv_dmah_init_attr"][::core::mem::align_of::<ibv_dmah_init_attr>() - 4usize];
    ["Offset of field: ibv_dmah_init_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_dmah_init_attr, comp_mask) - 0usize];
    ["Offset of field: ibv_dmah_init_attr::cpu_id"]
        [::core::mem::offset_of!(ibv_dmah_init_attr, cpu_id) - 4usize];
    ["Offset of field: ibv_dmah_init_attr::ph"]
        [::core::mem::offset_of!(ibv_dmah_init_attr, ph) - 8usize];
    ["Offset of field: ibv_dmah_init_attr::tph_mem_type"]
        [::core::mem::offset_of!(ibv_dmah_init_attr, tph_mem_type) - 9usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_counters_init_attr {
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_counters_init_attr"][::core::mem::size_of::<ibv_counters_init_attr>() - 4usize];
    ["Alignment of ibv_counters_init_attr"]
        [::core::mem::align_of::<ibv_counters_init_attr>() - 4usize];
    ["Offset of field: ibv_counters_init_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_counters_init_attr, comp_mask) - 0usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_counters {
    pub context: *mut ibv_context,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_counters"][::core::mem::size_of::<ibv_counters>() - 8usize];
    ["Alignment of ibv_counters"][::core::mem::align_of::<ibv_counters>() - 8usize];
    ["Offset of field: ibv_counters::context"]
        [::core::mem::offset_of!(ibv_counters, context) - 0usize];
};
impl Default for ibv_counters {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_COUNTER_PACKETS: ibv_counter_description = 0;
pub const IBV_COUNTER_BYTES: ibv_counter_description = 1;
pub type ibv_counter_description = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_counter_attach_attr {
    pub counter_desc: ibv_counter_description,
    pub index: u32,
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_counter_attach_attr"]
        [::core::mem::size_of::<ibv_counter_attach_attr>() - 12usize];
    ["Alignment of ibv_counter_attach_attr"]
        [::core::mem::align_of::<ibv_counter_attach_attr>() - 4usize];
    ["Offset of field: ibv_counter_attach_attr::counter_desc"]
        [::core::mem::offset_of!(ibv_counter_attach_attr, counter_desc) - 0usize];
    ["Offset of field: ibv_counter_attach_attr::index"]
        [::core::mem::offset_of!(ibv_counter_attach_attr, index) - 4usize];
    ["Offset of field: ibv_counter_attach_attr::comp_mask"]
        [::core::mem::offset_of!(ibv_counter_attach_attr, comp_mask) - 8usize];
};
impl Default for ibv_counter_attach_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_READ_COUNTERS_ATTR_PREFER_CACHED: ibv_read_counters_flags = 1;
pub type ibv_read_counters_flags = libc::c_uint;
pub const IBV_VALUES_MASK_RAW_CLOCK: ibv_values_mask = 1;
pub const IBV_VALUES_MASK_RESERVED: ibv_values_mask = 2;
pub type ibv_values_mask = libc::c_uint;
#[repr(C)]
pub struct ibv_values_ex {
    pub comp_mask: u32,
    pub raw_clock: timespec,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_values_ex"][::core::mem::size_of::<ibv_values_ex>() - 24usize];
    ["Alignment of ibv_values_ex"][::core::mem::align_of::<ibv_values_ex>() - 8usize];
    ["Offset of field: ibv_values_ex::comp_mask"]
        [::core::mem::offset_of!(ibv_values_ex, comp_mask) - 0usize];
    ["Offset of field: ibv_values_ex::raw_clock"]
        [::core::mem::offset_of!(ibv_values_ex, raw_clock) - 8usize];
};
impl Default for ibv_values_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
pub struct verbs_context {
    pub free_buf: ::core::option::Option<unsafe extern "C" fn(buf: *mut ibv_buf)>,
    pub alloc_buf: ::core::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            size: usize,
            buf: *mut *mut ibv_buf,
        ) -> *mut libc::c_void,
    >,
    pub dm_export_dmabuf_fd:
        ::core::option::Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> libc::c_int>,
    pub reg_mr_ex: ::core::option::Option<
        unsafe extern "C" fn(pd: *mut ibv_pd, mr_init_attr: *mut ibv_mr_init_attr) -> *mut ibv_mr,
    >,
    pub dealloc_dmah:
        ::core::option::Option<unsafe extern "C" fn(dmah: *mut ibv_dmah) -> libc::c_int>,
    pub alloc_dmah: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_dmah_init_attr,
        ) -> *mut ibv_dmah,
    >,
    pub query_port: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut ibv_port_attr,
            port_attr_len: usize,
        ) -> libc::c_int,
    >,
    pub advise_mr: ::core::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            advice: ib_uverbs_advise_mr_advice,
            flags: u32,
            sg_list: *mut ibv_sge,
            num_sges: u32,
        ) -> libc::c_int,
    >,
    pub alloc_null_mr: ::core::option::Option<unsafe extern "C" fn(pd: *mut ibv_pd) -> *mut ibv_mr>,
    pub read_counters: ::core::option::Option<
        unsafe extern "C" fn(
            counters: *mut ibv_counters,
            counters_value: *mut u64,
            ncounters: u32,
            flags: u32,
        ) -> libc::c_int,
    >,
    pub attach_counters_point_flow: ::core::option::Option<
        unsafe extern "C" fn(
            counters: *mut ibv_counters,
            attr: *mut ibv_counter_attach_attr,
            flow: *mut ibv_flow,
        ) -> libc::c_int,
    >,
    pub create_counters: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_counters_init_attr,
        ) -> *mut ibv_counters,
    >,
    pub destroy_counters:
        ::core::option::Option<unsafe extern "C" fn(counters: *mut ibv_counters) -> libc::c_int>,
    pub reg_dm_mr: ::core::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
            access: libc::c_uint,
        ) -> *mut ibv_mr,
    >,
    pub alloc_dm: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_alloc_dm_attr,
        ) -> *mut ibv_dm,
    >,
    pub free_dm: ::core::option::Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> libc::c_int>,
    pub modify_flow_action_esp: ::core::option::Option<
        unsafe extern "C" fn(
            action: *mut ibv_flow_action,
            attr: *mut ibv_flow_action_esp_attr,
        ) -> libc::c_int,
    >,
    pub destroy_flow_action:
        ::core::option::Option<unsafe extern "C" fn(action: *mut ibv_flow_action) -> libc::c_int>,
    pub create_flow_action_esp: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_flow_action_esp_attr,
        ) -> *mut ibv_flow_action,
    >,
    pub modify_qp_rate_limit: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> libc::c_int,
    >,
    pub alloc_parent_domain: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_parent_domain_init_attr,
        ) -> *mut ibv_pd,
    >,
    pub dealloc_td: ::core::option::Option<unsafe extern "C" fn(td: *mut ibv_td) -> libc::c_int>,
    pub alloc_td: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_td_init_attr,
        ) -> *mut ibv_td,
    >,
    pub modify_cq: ::core::option::Option<
        unsafe extern "C" fn(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> libc::c_int,
    >,
    pub post_srq_ops: ::core::option::Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            op: *mut ibv_ops_wr,
            bad_op: *mut *mut ibv_ops_wr,
        ) -> libc::c_int,
    >,
    pub destroy_rwq_ind_table: ::core::option::Option<
        unsafe extern "C" fn(rwq_ind_table: *mut ibv_rwq_ind_table) -> libc::c_int,
    >,
    pub create_rwq_ind_table: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_rwq_ind_table_init_attr,
        ) -> *mut ibv_rwq_ind_table,
    >,
    pub destroy_wq: ::core::option::Option<unsafe extern "C" fn(wq: *mut ibv_wq) -> libc::c_int>,
    pub modify_wq: ::core::option::Option<
        unsafe extern "C" fn(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> libc::c_int,
    >,
    pub create_wq: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            wq_init_attr: *mut ibv_wq_init_attr,
        ) -> *mut ibv_wq,
    >,
    pub query_rt_values: ::core::option::Option<
        unsafe extern "C" fn(context: *mut ibv_context, values: *mut ibv_values_ex) -> libc::c_int,
    >,
    pub create_cq_ex: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_cq_init_attr_ex,
        ) -> *mut ibv_cq_ex,
    >,
    pub priv_: *mut verbs_ex_private,
    pub query_device_ex: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            input: *const ibv_query_device_ex_input,
            attr: *mut ibv_device_attr_ex,
            attr_size: usize,
        ) -> libc::c_int,
    >,
    pub ibv_destroy_flow:
        ::core::option::Option<unsafe extern "C" fn(flow: *mut ibv_flow) -> libc::c_int>,
    pub ABI_placeholder2: ::core::option::Option<unsafe extern "C" fn()>,
    pub ibv_create_flow: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, flow_attr: *mut ibv_flow_attr) -> *mut ibv_flow,
    >,
    pub ABI_placeholder1: ::core::option::Option<unsafe extern "C" fn()>,
    pub open_qp: ::core::option::Option<
        unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp,
    >,
    pub create_qp_ex: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
        ) -> *mut ibv_qp,
    >,
    pub get_srq_num: ::core::option::Option<
        unsafe extern "C" fn(srq: *mut ibv_srq, srq_num: *mut u32) -> libc::c_int,
    >,
    pub create_srq_ex: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
        ) -> *mut ibv_srq,
    >,
    pub open_xrcd: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            xrcd_init_attr: *mut ibv_xrcd_init_attr,
        ) -> *mut ibv_xrcd,
    >,
    pub close_xrcd:
        ::core::option::Option<unsafe extern "C" fn(xrcd: *mut ibv_xrcd) -> libc::c_int>,
    pub _ABI_placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of verbs_context"][::core::mem::size_of::<verbs_context>() - 696usize];
    ["Alignment of verbs_context"][::core::mem::align_of::<verbs_context>() - 8usize];
    ["Offset of field: verbs_context::free_buf"]
        [::core::mem::offset_of!(verbs_context, free_buf) - 0usize];
    ["Offset of field: verbs_context::alloc_buf"]
        [::core::mem::offset_of!(verbs_context, alloc_buf) - 8usize];
    ["Offset of field: verbs_context::dm_export_dmabuf_fd"]
        [::core::mem::offset_of!(verbs_context, dm_export_dmabuf_fd) - 16usize];
    ["Offset of field: verbs_context::reg_mr_ex"]
        [::core::mem::offset_of!(verbs_context, reg_mr_ex) - 24usize];
    ["Offset of field: verbs_context::dealloc_dmah"]
        [::core::mem::offset_of!(verbs_context, dealloc_dmah) - 32usize];
    ["Offset of field: verbs_context::alloc_dmah"]
        [::core::mem::offset_of!(verbs_context, alloc_dmah) - 40usize];
    ["Offset of field: verbs_context::query_port"]
        [::core::mem::offset_of!(verbs_context, query_port) - 48usize];
    ["Offset of field: verbs_context::advise_mr"]
        [::core::mem::offset_of!(verbs_context, advise_mr) - 56usize];
    ["Offset of field: verbs_context::alloc_null_mr"]
        [::core::mem::offset_of!(verbs_context, alloc_null_mr) - 64usize];
    ["Offset of field: verbs_context::read_counters"]
        [::core::mem::offset_of!(verbs_context, read_counters) - 72usize];
    ["Offset of field: verbs_context::attach_counters_point_flow"]
        [::core::mem::offset_of!(verbs_context, attach_counters_point_flow) - 80usize];
    ["Offset of field: verbs_context::create_counters"]
        [::core::mem::offset_of!(verbs_context, create_counters) - 88usize];
    ["Offset of field: verbs_context::destroy_counters"]
        [::core::mem::offset_of!(verbs_context, destroy_counters) - 96usize];
    ["Offset of field: verbs_context::reg_dm_mr"]
        [::core::mem::offset_of!(verbs_context, reg_dm_mr) - 104usize];
    ["Offset of field: verbs_context::alloc_dm"]
        [::core::mem::offset_of!(verbs_context, alloc_dm) - 112usize];
    ["Offset of field: verbs_context::free_dm"]
        [::core::mem::offset_of!(verbs_context, free_dm) - 120usize];
    ["Offset of field: verbs_context::modify_flow_action_esp"]
        [::core::mem::offset_of!(verbs_context, modify_flow_action_esp) - 128usize];
    ["Offset of field: verbs_context::destroy_flow_action"]
        [::core::mem::offset_of!(verbs_context, destroy_flow_action) - 136usize];
    ["Offset of field: verbs_context::create_flow_action_esp"]
        [::core::mem::offset_of!(verbs_context, create_flow_action_esp) - 144usize];
    ["Offset of field: verbs_context::modify_qp_rate_limit"]
        [::core::mem::offset_of!(verbs_context, modify_qp_rate_limit) - 152usize];
    ["Offset of field: verbs_context::alloc_parent_domain"]
        [::core::mem::offset_of!(verbs_context, alloc_parent_domain) - 160usize];
    ["Offset of field: verbs_context::dealloc_td"]
        [::core::mem::offset_of!(verbs_context, dealloc_td) - 168usize];
    ["Offset of field: verbs_context::alloc_td"]
        [::core::mem::offset_of!(verbs_context, alloc_td) - 176usize];
    ["Offset of field: verbs_context::modify_cq"]
        [::core::mem::offset_of!(verbs_context, modify_cq) - 184usize];
    ["Offset of field: verbs_context::post_srq_ops"]
        [::core::mem::offset_of!(verbs_context, post_srq_ops) - 192usize];
    ["Offset of field: verbs_context::destroy_rwq_ind_table"]
        [::core::mem::offset_of!(verbs_context, destroy_rwq_ind_table) - 200usize];
    ["Offset of field: verbs_context::create_rwq_ind_table"]
        [::core::mem::offset_of!(verbs_context, create_rwq_ind_table) - 208usize];
    ["Offset of field: verbs_context::destroy_wq"]
        [::core::mem::offset_of!(verbs_context, destroy_wq) - 216usize];
    ["Offset of field: verbs_context::modify_wq"]
        [::core::mem::offset_of!(verbs_context, modify_wq) - 224usize];
    ["Offset of field: verbs_context::create_wq"]
        [::core::mem::offset_of!(verbs_context, create_wq) - 232usize];
    ["Offset of field: verbs_context::query_rt_values"]
        [::core::mem::offset_of!(verbs_context, query_rt_values) - 240usize];
    ["Offset of field: verbs_context::create_cq_ex"]
        [::core::mem::offset_of!(verbs_context, create_cq_ex) - 248usize];
    ["Offset of field: verbs_context::priv_"]
        [::core::mem::offset_of!(verbs_context, priv_) - 256usize];
    ["Offset of field: verbs_context::query_device_ex"]
        [::core::mem::offset_of!(verbs_context, query_device_ex) - 264usize];
    ["Offset of field: verbs_context::ibv_destroy_flow"]
        [::core::mem::offset_of!(verbs_context, ibv_destroy_flow) - 272usize];
    ["Offset of field: verbs_context::ABI_placeholder2"]
        [::core::mem::offset_of!(verbs_context, ABI_placeholder2) - 280usize];
    ["Offset of field: verbs_context::ibv_create_flow"]
        [::core::mem::offset_of!(verbs_context, ibv_create_flow) - 288usize];
    ["Offset of field: verbs_context::ABI_placeholder1"]
        [::core::mem::offset_of!(verbs_context, ABI_placeholder1) - 296usize];
    ["Offset of field: verbs_context::open_qp"]
        [::core::mem::offset_of!(verbs_context, open_qp) - 304usize];
    ["Offset of field: verbs_context::create_qp_ex"]
        [::core::mem::offset_of!(verbs_context, create_qp_ex) - 312usize];
    ["Offset of field: verbs_context::get_srq_num"]
        [::core::mem::offset_of!(verbs_context, get_srq_num) - 320usize];
    ["Offset of field: verbs_context::create_srq_ex"]
        [::core::mem::offset_of!(verbs_context, create_srq_ex) - 328usize];
    ["Offset of field: verbs_context::open_xrcd"]
        [::core::mem::offset_of!(verbs_context, open_xrcd) - 336usize];
    ["Offset of field: verbs_context::close_xrcd"]
        [::core::mem::offset_of!(verbs_context, close_xrcd) - 344usize];
    ["Offset of field: verbs_context::_ABI_placeholder3"]
        [::core::mem::offset_of!(verbs_context, _ABI_placeholder3) - 352usize];
    ["Offset of field: verbs_context::sz"][::core::mem::offset_of!(verbs_context, sz) - 360usize];
    ["Offset of field: verbs_context::context"]
        [::core::mem::offset_of!(verbs_context, context) - 368usize];
};
impl Default for verbs_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const IBV_REREG_MR_ERR_INPUT: ibv_rereg_mr_err_code = -1;
pub const IBV_REREG_MR_ERR_DONT_FORK_NEW: ibv_rereg_mr_err_code = -2;
pub const IBV_REREG_MR_ERR_DO_FORK_OLD: ibv_rereg_mr_err_code = -3;
pub const IBV_REREG_MR_ERR_CMD: ibv_rereg_mr_err_code = -4;
pub const IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW: ibv_rereg_mr_err_code = -5;
pub type ibv_rereg_mr_err_code = libc::c_int;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct verbs_ex_private {
    pub _address: u8,
}
