//! Agreement with the official `bson` crate.

use proptest::prelude::*;

use crate::testing::{any_decimal, any_document};
use crate::value::{Decimal128, ObjectId};

proptest! {
    #[test]
    fn decimals_have_the_same_text(n in any_decimal()) {
        let official = bson::Decimal128::from_bytes(n.0);
        prop_assert_eq!(n.to_string(), official.to_string());
        prop_assert_eq!(official.to_string().parse::<Decimal128>().unwrap(), n);
    }

    #[test]
    fn object_ids_have_the_same_text(bytes: [u8; 12]) {
        prop_assert_eq!(ObjectId(bytes).to_string(), bson::oid::ObjectId::from_bytes(bytes).to_hex());
    }

    #[test]
    fn the_official_reader_takes_every_document(doc in any_document()) {
        let raw = bson::RawDocument::from_bytes(doc.as_bytes()).unwrap();
        let names: Vec<_> = raw.iter().map(|element| element.unwrap().0.to_string()).collect();
        let own: Vec<_> = doc.as_raw().iter().map(|element| element.key().to_owned()).collect();
        prop_assert_eq!(names, own);
    }
}
