use super::*;

/// A list from its text, as `getfacl --omit-header` shows it, with numbers for names.
fn acl(text: &str) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for entry in text.split_whitespace() {
        let [kind, id, permissions] = entry.split(':').collect::<Vec<_>>()[..] else {
            panic!("{entry}")
        };
        let tag: u16 = match (kind, id) {
            ("user", "") => 0x01,
            ("user", _) => 0x02,
            ("group", "") => 0x04,
            ("group", _) => 0x08,
            ("mask", _) => 0x10,
            ("other", _) => 0x20,
            _ => panic!("{entry}"),
        };
        let bits = permissions.bytes().map(|letter| match letter {
            b'r' => 4_u16,
            b'w' => 2,
            b'x' => 1,
            _ => 0,
        });
        bytes.extend(tag.to_le_bytes());
        bytes.extend(bits.sum::<u16>().to_le_bytes());
        bytes.extend(id.parse().unwrap_or(u32::MAX).to_le_bytes());
    }
    bytes
}

fn sound(text: &str) -> Acl {
    Acl::parse(&acl(text)).unwrap().unwrap()
}

fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
    Caller { uid, gid, groups: groups.to_vec() }
}

const WHOLE: &str = "user::rwx user:7:rw- user:8:r-- group::r-x group:9:rw- group:10:-w- \
                     mask::rw- other::--x";

#[test]
fn what_is_no_list_is_refused_and_what_is_one_reads_back() {
    assert_eq!(sound(WHOLE).to_bytes(), acl(WHOLE));
    assert_eq!(Acl::parse(&VERSION.to_le_bytes()), Ok(None));
    let refused = Err(ErrorKind::InvalidArgument);
    for text in [
        "user::rwx group::r-x",
        "user::rwx group::r-x other::--- other::---",
        "user::rwx user:7:rwx group::r-x other::---",
        "user:7:rwx user::rwx group::r-x mask::rwx other::---",
        "user::rwx group::r-x mask::rwx mask::rwx other::---",
        "user::rwx group::r-x group:9:r-- other::---",
    ] {
        assert_eq!(Acl::parse(&acl(text)), refused, "{text}");
    }
    let whole = acl(WHOLE);
    assert_eq!(Acl::parse(&whole[..whole.len() - 1]), refused);
    assert_eq!(Acl::parse(b"\x02\0"), refused);
    assert_eq!(Acl::parse(b"\x01\0\0\0"), Err(ErrorKind::NotSupported));
    for (at, byte) in [(4, 3), (6, 8), (7, 1)] {
        let mut damaged = whole.clone();
        damaged[at] = byte;
        assert_eq!(Acl::parse(&damaged), refused, "{byte} at {at}");
    }
    let mut many = acl("user::rwx");
    (0..510).for_each(|id| many.extend(&acl(&format!("user:{id}:r--"))[4..]));
    many.extend(&acl("group::r-- mask::r-- other::r--")[4..]);
    assert_eq!(Acl::parse(&many), refused);
}

#[test]
fn the_first_entry_that_fits_decides_and_the_mask_limits_all_but_owner_and_others() {
    let list = sound(WHOLE);
    let may = |caller: &Caller| {
        [Access::Read, Access::Write, Access::Search]
            .map(|access| list.allows(caller, (5, 6), access))
    };
    assert_eq!(may(&caller(5, 9, &[])), [true, true, true], "the owner");
    assert_eq!(may(&caller(7, 6, &[])), [true, true, false], "a user with an entry");
    assert_eq!(may(&caller(8, 9, &[9])), [true, false, false], "not its groups");
    assert_eq!(may(&caller(1, 6, &[])), [true, false, false], "the group, under the mask");
    assert_eq!(may(&caller(1, 2, &[9])), [true, true, false], "a group with an entry");
    assert_eq!(may(&caller(1, 6, &[10])), [true, true, false], "each group that allows it");
    assert_eq!(may(&caller(1, 10, &[])), [false, true, false], "never as somebody else");
    assert_eq!(may(&caller(1, 2, &[3])), [false, false, true], "everybody else");
}

#[test]
fn mode_and_list_agree() {
    let mut list = sound(WHOLE);
    assert_eq!((list.mode(), list.is_mode()), (0o761, false));
    list.set_mode(0o640);
    let expected = "user::rw- user:7:rw- user:8:r-- group::r-x group:9:rw- group:10:-w- \
                    mask::r-- other::---";
    assert_eq!(list, sound(expected));
    let mut plain = sound("user::rwx group::r-x other::---");
    assert_eq!((plain.mode(), plain.is_mode()), (0o750, true));
    plain.set_mode(0o124);
    assert_eq!(plain, sound("user::--x group::-w- other::r--"));
    let masked = sound("user::rwx group::rwx mask::r-- other::---");
    assert_eq!((masked.mode(), masked.is_mode()), (0o740, false));
}

#[test]
fn a_new_inode_gets_what_default_list_and_program_both_allow() {
    let mut list = sound(WHOLE);
    assert_eq!(list.restrict(0o666), 0o660);
    let expected = "user::rw- user:7:rw- user:8:r-- group::r-x group:9:rw- group:10:-w- \
                    mask::rw- other::---";
    assert_eq!(list, sound(expected));
    let mut plain = sound("user::rwx group::r-x other::r-x");
    assert_eq!((plain.restrict(0o600), plain.is_mode()), (0o600, true));
}
