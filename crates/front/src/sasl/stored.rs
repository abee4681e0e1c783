//! Users as they stand in the collection of users, for who has not proved yet to be one.

use sheaf_auth::{Feigned, UserDocument, UserName};
use sheaf_bson::{RawDoc, doc};

use crate::log::{ids, seldom};

/// The user of this document, which is one that there is not if it is damaged: strangers are not told, the log is. Where there is no document
/// an example is read, which takes as long.
pub fn stored_user(document: Option<RawDoc<'_>>, name: &UserName, feigned: &Feigned) -> Option<UserDocument> {
    let Some(document) = document else {
        if let Some(example) = feigned.example() {
            std::hint::black_box(UserDocument::read(example)).ok();
        }
        return None;
    };
    match UserDocument::read(document) {
        Ok(user) => Some(user),
        Err(error) => {
            let about = doc! { "user": name.user.as_str(), "db": name.db.as_str(), "error": error.message() };
            seldom::error("ACCESS", ids::USER_DAMAGED, "conn", "A user's document cannot be read", about);
            None
        }
    }
}
