//! From where a user may come: `authenticationRestrictions`.

use std::net::IpAddr;

use sheaf_bson::{ArrayWriter, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

/// A range of addresses, `10.0.0.0/8` or one address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddressRange {
    text: String,
    address: IpAddr,
    bits: u8,
}

impl AddressRange {
    /// Reads it; `None` if it is none.
    pub fn parse(text: &str) -> Option<AddressRange> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then(|| AddressRange { text: text.to_owned(), address, bits })
    }

    /// Whether the address is one of it; IPv4 may be written as IPv6.
    pub fn contains(&self, address: IpAddr) -> bool {
        let number = |address: IpAddr| match address {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, true),
            IpAddr::V6(v6) => (v6.to_bits(), false),
        };
        let ((own, own_v4), (other, other_v4)) = (number(self.address), number(address.to_canonical()));
        let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
        own_v4 == other_v4 && own & mask == other & mask
    }
}

/// One element of `authenticationRestrictions`: all that it says has to hold.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Restriction {
    client_source: Option<Vec<AddressRange>>,
    server_address: Option<Vec<AddressRange>>,
}

/// A list of `authenticationRestrictions`: one of them has to hold.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RestrictionSet(Vec<Restriction>);

impl RestrictionSet {
    /// Reads a list.
    ///
    /// Errors: `UnsupportedFormat`, `CollectionIsEmpty`, `BadValue`.
    pub fn read(list: RawDoc<'_>) -> Result<Self> {
        let mut all = Vec::new();
        for value in list.values() {
            let Some(doc) = value.as_doc() else {
                bail!(
                    Code::UNSUPPORTED_FORMAT,
                    "'authenticationRestrictions' array sub-documents must be address restriction objects"
                );
            };
            all.push(Restriction::read(doc)?);
        }
        Ok(RestrictionSet(all))
    }

    /// Whether nothing is restricted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the list.
    pub fn write(&self, list: &mut ArrayWriter<'_, Vec<u8>>) {
        for restriction in &self.0 {
            let mut doc = list.document();
            let fields = [
                ("clientSource", &restriction.client_source),
                ("serverAddress", &restriction.server_address),
            ];
            for (name, ranges) in fields {
                if let Some(ranges) = ranges {
                    let mut texts = doc.array(name);
                    ranges.iter().for_each(|range| {
                        texts.push(&range.text);
                    });
                }
            }
        }
    }

    /// Whether a connection from `client` to `server` meets it; an address that there is not (a Unix domain socket) meets none.
    pub fn is_met(&self, client: Option<IpAddr>, server: Option<IpAddr>) -> bool {
        self.0.is_empty() || self.0.iter().any(|restriction| restriction.is_met(client, server))
    }
}

/// Whether a connection meets all of these lists.
pub fn met(sets: &[RestrictionSet], client: Option<IpAddr>, server: Option<IpAddr>) -> bool {
    sets.iter().all(|set| set.is_met(client, server))
}

impl Restriction {
    fn read(doc: RawDoc<'_>) -> Result<Self> {
        let mut restriction = Restriction::default();
        if doc.is_empty() {
            bail!(Code::COLLECTION_IS_EMPTY, "restriction documents may not be empty");
        }
        for field in doc.iter() {
            let place = match field.key() {
                "clientSource" => &mut restriction.client_source,
                "serverAddress" => &mut restriction.server_address,
                other => bail!(Code::UNSUPPORTED_FORMAT, "Restriction contains unrecognized field '{other}'"),
            };
            let texts: Vec<_> = match field.value() {
                Value::String(text) => vec![Some(text)],
                Value::Array(list) => list.values().map(|value| value.as_str()).collect(),
                _ => vec![None],
            };
            let mut ranges = Vec::new();
            for text in texts {
                let Some(range) = text.and_then(AddressRange::parse) else {
                    bail!(
                        Code::BAD_VALUE,
                        "'{}' must be addresses or ranges of addresses (CIDR), found {}",
                        field.key(),
                        text.unwrap_or("something else")
                    );
                };
                ranges.push(range);
            }
            *place = Some(ranges);
        }
        Ok(restriction)
    }

    fn is_met(&self, client: Option<IpAddr>, server: Option<IpAddr>) -> bool {
        let within = |ranges: &Option<Vec<AddressRange>>, address: Option<IpAddr>| match (ranges, address) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(ranges), Some(address)) => ranges.iter().any(|range| range.contains(address)),
        };
        within(&self.client_source, client) && within(&self.server_address, server)
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::array;

    use super::*;

    #[test]
    fn ranges_contain_addresses() {
        let list = array![{ "clientSource": ["10.0.0.0/8", "::1"], "serverAddress": ["127.0.0.1"] }, { "clientSource": ["0.0.0.0/0"], "serverAddress": ["1.2.3.4/31"] }];
        let set = RestrictionSet::read(list.as_raw()).unwrap();
        let met = |client: &str, server: &str| set.is_met(client.parse().ok(), server.parse().ok());
        assert!(
            met("10.9.8.7", "127.0.0.1") && met("::1", "127.0.0.1") && met("::ffff:10.1.1.1", "127.0.0.1")
        );
        assert!(met("8.8.8.8", "1.2.3.5") && !met("8.8.8.8", "1.2.3.6"));
        assert!(!met("11.0.0.0", "127.0.0.1") && !set.is_met(None, None));
        assert!(RestrictionSet::default().is_met(None, None));
        let bad =
            [array![{ "clientSource": ["10.0.0.0/33"] }], array![{ "from": ["::1"] }], array![{}], array![1]];
        assert!(bad.iter().all(|list| RestrictionSet::read(list.as_raw()).is_err()));
        let written = sheaf_bson::ArrayBuf::build(|out| set.write(out));
        assert_eq!(written.as_raw(), list.as_raw());
    }
}
