//! Extended attributes: SETXATTR, GETXATTR, LISTXATTR, REMOVEXATTR.

use crate::wire::{flag_set, wire_struct};

wire_struct! {
    /// Sets an attribute (`fuse_setxattr_in`); its name and its value follow. Without
    /// `SETXATTR_EXT` it is only the first 8 bytes.
    SetXAttr[16] {
        /// Bytes of the value.
        0 => size: u32,
        /// Flags of setxattr(2): 1 must not be there, 2 must be there.
        4 => flags: u32,
        /// See [`SetXAttrFlags`] (7.33).
        8 => set_flags: SetXAttrFlags,
    }
}

impl SetXAttr {
    /// Its length where `SETXATTR_EXT` was not agreed on.
    pub const SHORT_LEN: usize = 8;
}

flag_set! {
    /// What setting an attribute does besides.
    SetXAttrFlags: u32 {
        /// It is an ACL that the caller's group does not justify: take set-group-id away.
        ACL_KILL_SGID = 0,
    }
}

wire_struct! {
    /// Reads an attribute, whose name follows, or lists their names (`fuse_getxattr_in`).
    GetXAttr[8] {
        /// Bytes that the caller has room for: more is ERANGE. 0 asks for the length.
        0 => size: u32,
    }
}

wire_struct! {
    /// Answers GETXATTR and LISTXATTR of size 0 (`fuse_getxattr_out`).
    XAttrSizeReply[8] {
        /// Bytes that there are.
        0 => size: u32,
    }
}
