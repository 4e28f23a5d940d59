# Gives the constants bindgen emits the widths libfabric uses them with.
# Input: the file of names whose macro body is a 64-bit literal, then bindgen's output.
NR == FNR { wide[$1] = 1; next }

/^pub const [A-Za-z0-9_]+: / {
	name = $3
	sub(/:$/, "", name)
	type = $4
	new = type

	# Macros: bindgen picks the narrowest type that holds the value.
	if (type ~ /^[ui](32|64)$/) {
		if (name in wide)
			new = "u64"
		else if (name ~ /^FI_MR_/)			# fi_domain_attr.mr_mode is an int
			new = "libc::c_int"
		else if (name ~ /^FI_E[A-Z0-9]+$/ || name == "FI_SUCCESS" || name == "FI_ERRNO_OFFSET")
			new = "libc::c_int"
		else if (name ~ /^FI_PROV_SPECIFIC_/)
			new = "libc::c_int"
	}

	# Enumerators of anonymous enums: the type of the field or argument that carries them.
	if (type ~ /^_bindgen_ty_/) {
		if (name ~ /^FI_CLASS_/)			# fid.fclass is a size_t
			new = "usize"
		else if (name ~ /^FI_TAG_/)			# fi_ep_attr.mem_tag_format
			new = "u64"
		else if (name ~ /^(FI_FORMAT_|FI_SOCKADDR|FI_ADDR_|FI_PROTO_|FI_TC_|FI_VAR_|FI_EVENT_)/)
			new = "u32"
		else if (name ~ /^FI_(NOTIFY|CONNREQ|CONNECTED|SHUTDOWN|MR_COMPLETE|AV_COMPLETE|JOIN_COMPLETE)$/)
			new = "u32"				# the event of fi_eq_read
		else						# errno, commands, options: int
			new = "libc::c_int"
	}

	if (new != type)
		sub(": " type " =", ": " new " =")
}

/^pub type _bindgen_ty_[0-9]+ = libc::c_u?int;$/ { next }
{ print }
