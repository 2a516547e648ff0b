//! Names of what stands in a bucket for an upload that is not over: `.NAME.millrace-ID` beside the
//! destination. Listings pass over them, whoever left them there, and lists of uploads show them.

use crate::{Error, object::KEY_LEN_MAX};

pub(crate) const MARK: &str = ".millrace-";

/// A new upload's id: 16 hexadecimal digits.
pub(crate) fn new_id() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// Whether the last part of a key is such a name.
pub(crate) fn is_temporary(key: &str) -> bool {
    let name = key.rsplit('/').next().unwrap_or(key);
    name.starts_with('.') && name.rsplit_once(MARK).is_some_and(|(_, id)| is_id(id))
}

/// The key that stands for an upload to `key`. Never cut, so that it tells whose it is.
///
/// # Errors
/// [`Error::Invalid`] when it would be longer than a key may be.
pub(crate) fn key_of(key: &str, id: &str) -> Result<String, Error> {
    let temporary = format!("{}{id}", prefix_of(key));
    if temporary.len() > KEY_LEN_MAX || !is_id(id) {
        return Err(Error::invalid(format!(
            "an upload by parts to {key:?} is not possible: beside it goes a name of {} bytes, and \
             a key has {KEY_LEN_MAX} at most",
            temporary.len()
        )));
    }
    Ok(temporary)
}

/// What the keys of all uploads to `key` begin with.
pub(crate) fn prefix_of(key: &str) -> String {
    let (directory, name) = key.rfind('/').map_or(("", key), |at| key.split_at(at + 1));
    format!("{directory}.{name}{MARK}")
}

/// The id of the upload to `key` that a temporary key stands for, if it is one of this key's.
pub(crate) fn id_of<'t>(temporary: &'t str, key: &str) -> Option<&'t str> {
    temporary.strip_prefix(prefix_of(key).as_str()).filter(|id| is_id(id))
}

/// The key that an upload is to, and its id, of a temporary key.
pub(crate) fn destination_of(temporary: &str) -> Option<(String, &str)> {
    let (directory, name) =
        temporary.rfind('/').map_or(("", temporary), |at| temporary.split_at(at + 1));
    let (object, id) = name.strip_prefix('.')?.rsplit_once(MARK)?;
    is_id(id).then(|| (format!("{directory}{object}"), id))
}

/// Whether a text can be the id of such an upload.
pub(crate) fn is_id(id: &str) -> bool {
    id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_key_lies_beside_its_destination_and_tells_whose_it_is() {
        let id = "0123456789abcdef";
        for key in ["a", "a/b", "a/.millrace-/b", "d/.a.millrace-0123456789abcdef"] {
            let temporary = key_of(key, id).unwrap();
            assert!(is_temporary(&temporary), "{temporary}");
            assert_eq!(
                temporary.rsplit_once('/').map(|at| at.0),
                key.rsplit_once('/').map(|at| at.0)
            );
            assert_eq!(id_of(&temporary, key), Some(id), "{temporary}");
            assert_eq!(id_of(&temporary, "a/other"), None);
            assert_eq!(destination_of(&temporary), Some((key.to_owned(), id)));
        }
        for other in ["a", ".a", ".a.millrace-", "d/.a.millrace-xyz", "a.millrace-0123456789abcdef"]
        {
            assert!(!is_temporary(other), "{other}");
            assert_eq!(destination_of(other), None);
        }
        assert!(key_of(&"x".repeat(1000), id).is_err());
        assert!(key_of("a", "../../../../../x").is_err());
    }
}
